"""The step's vitals: one packed collective in which every rank tells all others how its step went.

Floats travel as float64 and counts as int64, bit-cast into one int64 tensor: float32 would round ids and
overflow squares. Every rank receives all rows and sums them in rank order, so that all hold equal bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from stormsail.platform.errors import InternalError

T = TypeVar("T")

_FLOATS = 4
_POSITIVE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RankVitals:
    """What one rank contributes.

    Attributes:
        loss_sum: Summed loss over its real tokens, in nats.
        square_norm: Sum of squares of its gradient shard.
        compute_s: Seconds of forward and backward.
        data_s: Seconds spent getting the batch.
        tokens: Real tokens that it processed.
        nonfinite_gradients: Non-finite elements in its gradient shard, plus one for a non-finite loss.
        nonfinite_state: Non-finite elements in its masters and moments (counted only after a non-finite gradient).
        first_parameter: Index of its first parameter with a non-finite gradient, or -1.
        stop: 1 if a person's request to stop has reached this rank.
        step: The step, to catch ranks that have come apart.
        batch: Sum of a checksum over the samples that it read; sums of ranks add up to the global batch's.
    """

    loss_sum: float
    square_norm: float
    compute_s: float
    data_s: float
    tokens: int
    nonfinite_gradients: int
    nonfinite_state: int
    first_parameter: int
    stop: int
    step: int
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What all ranks know after the collective, with equal bits on all of them.

    Attributes:
        loss: Token-weighted mean loss in nats; nan where there was no real token.
        grad_norm: Global gradient norm before clipping, of the gradient that is the mean over real tokens.
        tokens: Real tokens in the global batch.
        nonfinite_gradients: Sum over the ranks.
        nonfinite_state: Sum over the ranks.
        first_bad_rank: First rank with a non-finite value, or -1.
        first_bad_parameter: Index of the first such parameter on that rank, or -1.
        stop: Whether any rank carries a request to stop.
        batch: Digest of the token ids of the global batch, whatever the world size.
        ranks: Every rank's own vitals, by rank.
    """

    loss: float
    grad_norm: float
    tokens: int
    nonfinite_gradients: int
    nonfinite_state: int
    first_bad_rank: int
    first_bad_parameter: int
    stop: bool
    batch: int
    ranks: tuple[RankVitals, ...]


def pack(mine: RankVitals) -> np.ndarray:
    """One row of int64 lanes, `_FLOATS` of them first, which hold float64 bits."""
    floats = np.array([mine.loss_sum, mine.square_norm, mine.compute_s, mine.data_s], dtype=np.float64)
    ints = np.array(
        [
            mine.tokens,
            mine.nonfinite_gradients,
            mine.nonfinite_state,
            mine.first_parameter,
            mine.stop,
            mine.step,
            mine.batch,
        ],
        dtype=np.int64,
    )
    return np.concatenate([floats.view(np.int64), ints])


def unpack(row: np.ndarray) -> RankVitals:
    """The inverse of `pack`."""
    loss_sum, square_norm, compute_s, data_s = (float(value) for value in row[:_FLOATS].view(np.float64))
    tokens, gradients, state, first, stop, step, batch = (int(value) for value in row[_FLOATS:])
    return RankVitals(loss_sum, square_norm, compute_s, data_s, tokens, gradients, state, first, stop, step, batch)


def reduce_rows(rows: list[RankVitals], *, nominal_tokens: int) -> Vitals:
    """Combine all ranks' rows (pure).

    Args:
        rows: By rank.
        nominal_tokens: Tokens of a full global batch. Gradients were scaled by it before the real count was known.
    """
    tokens = sum(row.tokens for row in rows)
    loss_sum = math.fsum(row.loss_sum for row in rows) if all(math.isfinite(r.loss_sum) for r in rows) else math.nan
    squares = [row.square_norm for row in rows]
    norm = math.sqrt(math.fsum(squares)) if all(math.isfinite(value) for value in squares) else math.inf
    bad = next((rank for rank, row in enumerate(rows) if row.nonfinite_gradients or row.nonfinite_state), -1)
    return Vitals(
        loss=loss_sum / tokens if tokens else math.nan,
        grad_norm=norm * token_correction(tokens, nominal_tokens),
        tokens=tokens,
        nonfinite_gradients=sum(row.nonfinite_gradients for row in rows),
        nonfinite_state=sum(row.nonfinite_state for row in rows),
        first_bad_rank=bad,
        first_bad_parameter=rows[bad].first_parameter if bad >= 0 else -1,
        stop=any(row.stop for row in rows),
        batch=sum(row.batch for row in rows) & _POSITIVE,
        ranks=tuple(rows),
    )


def token_correction(tokens: int, nominal_tokens: int) -> float:
    """Turns a gradient scaled by the nominal token count into the mean over the real ones."""
    return nominal_tokens / tokens if tokens else 1.0


def exchange(mine: RankVitals, *, device: torch.device, nominal_tokens: int) -> Vitals:
    """Run the packed collective (collective)."""
    world_size = dist.get_world_size()
    row = torch.from_numpy(pack(mine)).to(device)
    rows = torch.empty(world_size * row.numel(), dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(rows, row)
    table = rows.cpu().numpy().reshape(world_size, -1)
    return reduce_rows([unpack(table[rank]) for rank in range(world_size)], nominal_tokens=nominal_tokens)


def share_verdict(code: int, *, device: torch.device) -> int:
    """Rank 0's verdict on all ranks (collective): one small integer, decided once."""
    tensor = torch.tensor([code], dtype=torch.int64, device=device)
    dist.broadcast(tensor, src=0)
    return int(tensor.item())


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
