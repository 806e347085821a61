"""The step's vitals: one packed collective in which every rank tells all others how its step went.

Floats travel as float64 and counts as int64, bit-cast into one int64 tensor: float32 would round ids and
overflow squares. Every rank receives all rows and combines them alike, so that all hold equal bits. The row has the
same length at every step, whatever was sampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from stormsail.platform.errors import InternalError
from stormsail.workers.plan import disagreeing

T = TypeVar("T")
Table = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_POSITIVE = 2**63 - 1
_TIMES = ("data_s", "compute_s", "comm_s", "update_s", "vitals_s", "sample_s", "exchange_s", "share_s", "step_s")
_FLOATS = ("loss_sum", "loss_scale")
_GROUPED = ("squares", "activations", "attention", "update_squares")
_INTS = (
    "tokens",
    "nonfinite_gradients",
    "nonfinite_state",
    "first_parameter",
    "own_bad",
    "overflowed",
    "stop",
    "step",
    "batch",
    "plan",
    "correct",
    "zeros",
)


@dataclass(frozen=True, slots=True)
class Times:
    """Where one rank's time went, in seconds.

    Attributes:
        data_s: Getting the batch.
        compute_s: Forward and backward, without waiting for other ranks.
        comm_s: Waiting in the collectives of forward and backward.
        update_s: The optimizer's step, of the step before.
        vitals_s: Work on vitals and verdict, of the step before; neither waiting nor samples are in it.
        sample_s: What the sampled vitals of the step before took; nan if it took none.
        exchange_s: In the packed collective of the step before, waiting included.
        share_s: In the broadcast of its verdict, waiting included.
        step_s: The whole step before.
    """

    data_s: float = 0.0
    compute_s: float = 0.0
    comm_s: float = 0.0
    update_s: float = 0.0
    vitals_s: float = 0.0
    sample_s: float = math.nan
    exchange_s: float = 0.0
    share_s: float = 0.0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RankVitals:
    """What one rank contributes. In the grouped figures, one for each layer group, nan stands for "not sampled".

    Attributes:
        loss_sum: Summed loss over its real tokens, in nats.
        squares: Sum of squares of its gradient shard, by layer group.
        tokens: Real tokens that it processed.
        nonfinite_gradients: Non-finite elements in its gradient shard, plus one for a non-finite loss.
        nonfinite_state: Non-finite elements in its masters and moments, where they were counted.
        first_parameter: Index of its first parameter with a non-finite gradient, or -1.
        own_bad: 1 if the gradient that it computed itself, before ranks summed up, was not finite.
        overflowed: 1 if its optimizer's own check for overflow has refused the update before.
        loss_scale: What its loss was multiplied by before backward.
        stop: 1 if a person's request to stop has reached this rank.
        step: The step.
        batch: Sum of a checksum over the samples that it read; sums of ranks add up to the global batch's.
        plan: `plan_word` of what it is about to do.
        times: Where its time went.
        activations: Largest absolute output; infinite if one was not finite.
        attention: Largest attention logit.
        update_squares: Sum of squares of Adam's last update before the learning rate, over its shard.
        correct: Real tokens that were predicted, or -1 if not sampled.
        zeros: Elements of its gradient shard that are exactly 0, or -1 if not sampled.
    """

    loss_sum: float
    squares: tuple[float, ...]
    tokens: int
    nonfinite_gradients: int
    nonfinite_state: int
    first_parameter: int
    stop: int
    step: int
    own_bad: int = 0
    overflowed: int = 0
    loss_scale: float = 1.0
    batch: int = 0
    plan: int = 0
    times: Times = field(default_factory=Times)
    activations: tuple[float, ...] = ()
    attention: tuple[float, ...] = ()
    update_squares: tuple[float, ...] = ()
    correct: int = -1
    zeros: int = -1


@dataclass(frozen=True)
class Vitals:
    """What all ranks know after the collective, with equal bits on all of them.

    Attributes:
        table: One row of lanes for each rank.
        groups: Layer groups.
        nominal_tokens: Tokens of a full global batch.
    """

    table: Table
    groups: int
    nominal_tokens: int

    # ------------------------------------------------------------------- lanes

    def floats(self, name: str) -> Floats:
        """One float of every rank: `loss_sum`, `loss_scale`, or a time."""
        return self._as_floats[:, (*_FLOATS, *_TIMES).index(name)]

    def grouped(self, name: str) -> Floats:
        """A grouped figure, `[ranks, groups]`."""
        start = len(_FLOATS) + len(_TIMES) + _GROUPED.index(name) * self.groups
        return self._as_floats[:, start : start + self.groups]

    def ints(self, name: str) -> Table:
        """One whole number of every rank."""
        return self.table[:, self.table.shape[1] - len(_INTS) + _INTS.index(name)]

    @cached_property
    def _as_floats(self) -> Floats:
        return self.table.view(np.float64)

    # ---------------------------------------------------------------- combined

    @cached_property
    def tokens(self) -> int:
        """Real tokens in the global batch."""
        return int(self.ints("tokens").sum())

    @cached_property
    def loss(self) -> float:
        """Token-weighted mean loss in nats; nan where there was no real token, or a loss was not finite."""
        sums = self.floats("loss_sum")
        return math.fsum(sums) / self.tokens if self.tokens and bool(np.isfinite(sums).all()) else math.nan

    @cached_property
    def grad_norm(self) -> float:
        """Global gradient norm before clipping, of the gradient that is the mean over real tokens; inf if not finite."""
        squares = self.grouped("squares")
        if not np.isfinite(squares).all():
            return math.inf
        return math.sqrt(math.fsum(squares.ravel())) * token_correction(self.tokens, self.nominal_tokens)

    @cached_property
    def group_norms(self) -> tuple[float, ...]:
        """The same of each layer group."""
        correction = token_correction(self.tokens, self.nominal_tokens)
        return tuple(float(norm) for norm in np.sqrt(self.grouped("squares").sum(axis=0)) * correction)

    @cached_property
    def nonfinite_gradients(self) -> int:
        """Non-finite gradient elements, and losses, of all ranks."""
        return int(self.ints("nonfinite_gradients").sum())

    @cached_property
    def nonfinite_state(self) -> int:
        """Non-finite elements of masters and moments on all ranks."""
        return int(self.ints("nonfinite_state").sum())

    @cached_property
    def first_bad_rank(self) -> int:
        """The rank that non-finite values came from, or -1 where there are none, or nothing tells whose they are.

        A rank's loss, masters and moments are its own, and so is the gradient that it computed before ranks summed up.
        Its shard of the sum is not: one rank's NaN reaches the shards of others. So what all ranks show alike accuses
        nobody, and a shard is believed last: where only the sum is bad, it was spoilt after it was made.
        """
        signs = (
            ~np.isfinite(self.floats("loss_sum")),
            self.ints("nonfinite_state") > 0,
            self.ints("own_bad") > 0,
            self.ints("nonfinite_gradients") > 0,
        )
        for bad in signs:
            if bad.any() and (len(bad) == 1 or not bad.all()):
                return int(bad.argmax())
        return -1

    @property
    def first_bad_parameter(self) -> int:
        """Index of the first parameter with a non-finite gradient, on the first rank whose shard has one, or -1."""
        return next((int(index) for index in self.ints("first_parameter") if index >= 0), -1)

    @property
    def stop(self) -> bool:
        """Whether any rank carries a request to stop."""
        return bool(self.ints("stop").any())

    @property
    def batch(self) -> int:
        """Digest of the token ids of the global batch, whatever the world size."""
        return sum(int(part) for part in self.ints("batch")) & _POSITIVE

    @cached_property
    def disagreeing(self) -> tuple[int, ...]:
        """Ranks whose plan is not that of the others; () where all agree."""
        return disagreeing([int(word) for word in self.ints("plan")])

    @cached_property
    def rank_losses(self) -> Floats:
        """Mean loss of each rank over its own tokens; nan where it had none."""
        tokens = self.ints("tokens")
        return np.where(tokens > 0, self.floats("loss_sum") / np.maximum(tokens, 1), math.nan)

    @cached_property
    def shard_norms(self) -> Floats:
        """Norm of each rank's gradient shard."""
        norms: Floats = np.sqrt(self.grouped("squares").sum(axis=1))
        return norms

    @cached_property
    def own_s(self) -> Floats:
        """Seconds that each rank was busy itself: batch, forward and backward."""
        return self.floats("data_s") + self.floats("compute_s")

    @cached_property
    def waits_s(self) -> Floats:
        """Seconds that each rank waited for the slowest in the collective of the step before."""
        exchange = self.floats("exchange_s")
        waits: Floats = exchange - exchange.min()
        return waits

    @cached_property
    def watching_s(self) -> float:
        """Vitals and verdict of the step before on the critical path: the slowest rank's work, and two collectives.

        Who comes last waits least, so the shortest time in a collective is what it takes by itself.
        """
        shared = float(self.floats("share_s")[0])
        return float(self.floats("vitals_s").max() + self.floats("exchange_s").min()) + shared

    @cached_property
    def sample_s(self) -> float | None:
        """What the sample of the step before added, on the slowest rank; None if none was taken."""
        taken = [cost for cost in self.floats("sample_s").tolist() if not math.isnan(cost)]
        return max(taken) if taken else None


def pack(mine: RankVitals) -> Table:
    """One row of int64 lanes; the first ones hold float64 bits."""
    groups = len(mine.squares)
    absent = (math.nan,) * groups
    floats = [getattr(mine, name) for name in _FLOATS] + [getattr(mine.times, name) for name in _TIMES]
    for name in _GROUPED:
        floats += getattr(mine, name) or absent
    ints = np.array([getattr(mine, name) for name in _INTS], dtype=np.int64)
    return np.concatenate([np.array(floats, dtype=np.float64).view(np.int64), ints])


def unpack(table: Table, *, nominal_tokens: int) -> Vitals:
    """Read all ranks' rows (pure).

    Args:
        table: `[ranks, lanes]`.
        nominal_tokens: Tokens of a full global batch. Gradients were scaled by it before the real count was known.
    """
    groups = (table.shape[1] - len(_INTS) - len(_TIMES) - len(_FLOATS)) // len(_GROUPED)
    return Vitals(np.ascontiguousarray(table), groups, nominal_tokens)


def token_correction(tokens: int, nominal_tokens: int) -> float:
    """Turns a gradient scaled by the nominal token count into the mean over the real ones."""
    return nominal_tokens / tokens if tokens else 1.0


def exchange(mine: RankVitals, *, device: torch.device, nominal_tokens: int) -> Vitals:
    """Run the packed collective (collective)."""
    world_size = dist.get_world_size()
    row = torch.from_numpy(pack(mine)).to(device)
    rows = torch.empty(world_size * row.numel(), dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(rows, row)
    return unpack(rows.cpu().numpy().reshape(world_size, -1), nominal_tokens=nominal_tokens)


def share_verdict(code: int, clip_to: float, *, device: torch.device) -> tuple[int, float]:
    """Rank 0's verdict on all ranks (collective): one small integer, and a norm to clip to; decided once."""
    bits = np.array([clip_to], dtype=np.float64).view(np.int64)[0]
    tensor = torch.tensor([code, int(bits)], dtype=torch.int64, device=device)
    dist.broadcast(tensor, src=0)
    shared = tensor.cpu().numpy()
    return int(shared[0]), float(shared[1:].view(np.float64)[0])


def share_object(value: T | None, *, device: torch.device) -> T:
    """Rank 0's object on all ranks (collective); only for the rare path, never in a healthy step."""
    box: list[T | None] = [value]
    dist.broadcast_object_list(box, src=0, device=device)
    received = box[0]
    if received is None:
        raise InternalError("rank 0 broadcast nothing")
    return received


def gather_objects(mine: T) -> list[T]:
    """Every rank's object, by rank, on all ranks (collective); only for the rare path."""
    boxes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(boxes, mine)
    return boxes


def all_agree(ok: bool, *, device: torch.device) -> bool:  # noqa: FBT001 - the question is the argument
    """Whether every rank says yes (collective)."""
    tensor = torch.tensor([1 if ok else 0], dtype=torch.int64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
    return bool(tensor.item())
