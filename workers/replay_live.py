"""The run itself as the subject of a replay: its engine goes back and forth while its state waits in host memory.

Nothing of the run moves: not its position, its detectors, its data order nor its drills. What the replay does to the
engine is undone from the parked copy, whose sums are compared before and after on every rank.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from stormsail.platform.checkpoint.digest import word_sum
from stormsail.platform.checkpoint.shards import Shard
from stormsail.platform.data.order import DataOrder
from stormsail.platform.diagnosis import ReplayPlan, ReplayResult, SampleScore, TraceRow
from stormsail.platform.errors import CheckpointError, FencedError, InternalError, StateMismatchError, StormsailError
from stormsail.platform.messages import Phase
from stormsail.workers import vitals
from stormsail.workers.batches import Batch, BatchReader, checksum
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import VerdictKind, judge
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.gradient_log import is_logged
from stormsail.workers.inject import Injector
from stormsail.workers.judging import observe
from stormsail.workers.measure import count_zeros, measure, update_squares
from stormsail.workers.replay import Ranges, replay
from stormsail.workers.seeding import seed_all
from stormsail.workers.session import Session
from stormsail.workers.updating import set_rate, update
from stormsail.workers.world import all_come_here

_TOGETHER_S = 20.0  # ranks that break off alike do so within a step of each other


@dataclass(frozen=True, slots=True)
class Parked:
    """A whole state of this rank in host memory.

    Attributes:
        shards: Masters and moments.
        scalars: What of the optimizer's state is not shaped like a parameter.
        sums: Word sums of the live buffers that were copied.
    """

    shards: list[Shard]
    scalars: dict[str, list[float]]
    sums: tuple[int, ...]


def park(engine: ZeroEngine) -> Parked:
    """Copy the live state to host memory, checked against what is live.

    Raises:
        StateMismatchError: The copy differs from the live state.
    """
    sums = live_sums(engine)
    shards = engine.copy_state()
    if tuple(word_sum(np.asarray(shard.values)) for shard in shards) != sums:
        raise StateMismatchError("the copy of the live state differs from it", todo="check this node's memory")
    return Parked(shards, engine.optimizer_scalars(), sums)


def live_sums(engine: ZeroEngine) -> tuple[int, ...]:
    """One sum over the words of each live buffer of this rank."""
    return tuple(word_sum(live.detach().cpu().numpy()) for piece, _, live in engine.live_buffers() if piece.count)


def put_back(engine: ZeroEngine, parked: Parked) -> None:
    """Make the engine hold the parked state again (collective).

    Raises:
        StateMismatchError: On any rank the engine holds something else afterwards; all ranks raise.
    """
    engine.write_state(parked.shards, parked.scalars)
    mine = live_sums(engine) == parked.sums and engine.optimizer_scalars() == parked.scalars
    answers = vitals.gather_objects(mine)
    if not all(answers):
        apart = ", ".join(str(rank) for rank, same in enumerate(answers) if not same)
        raise StateMismatchError(
            f"after a replay the state of rank {apart} is not what it was", todo="check the memory of its node"
        )


def diagnose(
    plan: ReplayPlan, session: Session, *, source: BatchReader, injector: Injector, at: Callable[[Phase, int], None]
) -> ReplayResult:
    """Replay an incident's steps on the run's own engine; the engine's state is afterwards what it was (collective).

    Args:
        plan: What to replay.
        session: The run; nothing of it changes.
        source: Its data.
        injector: Its drill faults; they act, but are not counted.
        at: Told of each step, so that nobody takes the replay for hanging.

    Whatever breaks the replay off on all ranks is a problem that the result names, and no harm. What breaks it off on
    some ranks alone ends them: the others are in the middle of a collective, and cannot be called back from there.

    Raises:
        StateMismatchError: The state could not be put back.
        Exception: What broke it off, where not all ranks were broken off.
    """
    precision = session.engine.precision
    at(Phase.REPLAY, session.position.step)
    place = vitals.share_object(secrets.token_hex(8) if session.world.rank == 0 else None, device=session.device)
    unheard = injector.unheard()
    parked = park(session.engine)
    broken = False
    try:
        result = replay(plan, Live(plan, session, source, unheard, at), precision)
    except CheckpointError as error:  # raised on all ranks alike, before anything ran
        result = ReplayResult(problem=_in_one_line(error))
    except FencedError:
        raise
    except Exception as error:
        if not all_come_here(f"broken-replay/{place}", limit_s=_TOGETHER_S):
            raise
        broken = True
        traceback.print_exception(error)  # in full for this rank's log; the result has a line of it
        result = ReplayResult(problem=f"it broke off: {_in_one_line(error)}", broken=True)
    unheard.disarm()
    if broken or session.engine.precision != precision:
        session.rebuild(precision)  # an engine that was left in the middle of a pass is no good
    put_back(session.engine, parked)
    return result


def _in_one_line(error: Exception) -> str:
    name = "" if isinstance(error, StormsailError) else f"{type(error).__name__}: "
    return f"{name}{error}".strip().replace("\n", "; ")


class Live:
    """The run's own engine, taken back and forth; every method is collective.

    Args:
        plan: What is replayed.
        session: The run.
        source: Its data.
        injector: Drill faults that nobody hears of.
        at: Told of each step.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        session: Session,
        source: BatchReader,
        injector: Injector,
        at: Callable[[Phase, int], None],
    ) -> None:
        self._plan = plan
        self._session = session
        self._config = session.config
        self._source = source
        self._injector = injector
        self._at = at
        self._kept: tuple[Parked, DetectorState] | None = None
        self._detector = DetectorState()

    @property
    def names(self) -> tuple[str, ...]:
        """Layer groups, from the model's input to its output."""
        return self._session.engine.groups.names

    def load(self) -> None:
        """See `Subject.load`. Raises `CheckpointError` on all ranks alike."""
        found = self._session.load_state(self._plan.restore)
        if isinstance(found, str):
            raise CheckpointError(found)
        self._detector = found

    def keep(self) -> None:
        """See `Subject.keep`."""
        self._kept = park(self._session.engine), self._detector

    def back(self, precision: str) -> None:
        """See `Subject.back`."""
        if self._kept is None:
            raise InternalError("a replay goes back before it kept a state")
        if self._session.engine.precision != precision:
            self._session.rebuild(precision)
        parked, self._detector = self._kept
        self._session.engine.write_state(parked.shards, parked.scalars)

    def step(self, step: int, *, leave_out: Ranges, lr_factor: float) -> TraceRow:
        """See `Subject.step`."""
        self._at(Phase.REPLAY, step)
        engine, world = self._session.engine, self._session.world
        rate = set_rate(self._session, self._injector, step, cut=lr_factor)
        batches = self._source.micro_batches(step, self._order(leave_out))
        seed_all(self._config.seed, step, world.rank)
        scale = world.world_size / self._source.nominal_tokens
        losses = 0.0
        self._injector.before_backward(engine, step)
        for index, batch in enumerate(batches):
            losses += engine.forward_backward(batch, scale, last=index == len(batches) - 1)
        self._injector.after_backward(engine, step)
        if is_logged(self._config, engine.precision):
            engine.round_gradients()
        seen = self._exchange(step, losses, batches)
        self._update(step, seen)
        return TraceRow(
            step=step,
            loss=seen.loss,
            grad_norm=seen.grad_norm,
            groups=seen.group_norms,
            update_rms=self._update_rms(),
            nonfinite=seen.nonfinite_gradients,
            bad_rank=seen.first_bad_rank,
            rank_losses=tuple(seen.rank_losses.tolist()),
            lr=rate.used,
            zero_share=float(seen.ints("zeros").sum()) / max(sum(engine.group_elements), 1),
            batch=seen.batch,
        )

    def score(self, step: int, *, leave_out: Ranges) -> Sequence[SampleScore]:
        """See `Subject.score`."""
        self._at(Phase.REPLAY, step)
        order, world = self._order(leave_out), self._session.world
        seed_all(self._config.seed, step, world.rank)
        mine: list[float] = []
        for batch in self._source.micro_batches(step, order):
            losses = self._session.engine.losses(batch)
            mine += [float(row.sum() / mask.sum()) for row, mask in zip(losses, batch[2], strict=True) if mask.any()]
        found = [loss for losses in vitals.gather_objects(mine) for loss in losses]
        positions = order.positions(step, self._config.train.global_batch)
        # A sample without a real token has no loss, so that losses cannot be told apart by place.
        if len(found) != len(positions):
            return []
        return [SampleScore(step, int(place), loss) for place, loss in zip(positions, found, strict=True)]

    # ---------------------------------------------------------------- one step's parts

    def _order(self, leave_out: Ranges) -> DataOrder:
        return DataOrder(self._source.samples, self._config.seed, (*self._session.directive.skip, *leave_out))

    def _exchange(self, step: int, losses: float, batches: Sequence[Batch]) -> vitals.Vitals:
        """The vitals of the loop, so that their bits can be compared, and the share of zeros in every step."""
        engine = self._session.engine
        mine = measure(
            engine,
            step=step,
            loss_sum=losses,
            tokens=sum(int(batch[2].sum()) for batch in batches),
            batch=sum(checksum(batch) for batch in batches),
            plan=0,
            stop=False,
            times=vitals.Times(),
            sample=None,
        )
        mine = dataclasses.replace(mine, zeros=count_zeros(engine))
        return vitals.exchange(mine, device=self._session.device, nominal_tokens=self._source.nominal_tokens)

    def _update(self, step: int, seen: vitals.Vitals) -> None:
        """As the loop does it; only that what would be an incident goes on, clipped as configured."""
        session = self._session
        code, clip_to = 0, math.inf
        if session.world.rank == 0:
            self._detector, verdict = judge(self._detector, observe(step, seen, restart=False), session.policy)
            code, clip_to = verdict.kind.code, verdict.clip_to
        code, clip_to = vitals.share_verdict(code, clip_to, device=session.device)
        kind = VerdictKind.from_code(code)
        if kind is VerdictKind.INCIDENT:
            finite = not seen.nonfinite_gradients and math.isfinite(seen.loss) and math.isfinite(seen.grad_norm)
            kind = VerdictKind.WATCH if finite and not seen.nonfinite_state else VerdictKind.DROP
        update(session, step, seen, kind, clip_to)
        if session.is_rounded_at(step + 1):
            session.engine.round_state()

    def _update_rms(self) -> float:
        """Root mean square of the last update over its learning rate; 0 where the optimizer is no Adam (collective)."""
        engine = self._session.engine
        squares = update_squares(engine)
        mine = [math.fsum(squares) if squares is not None else math.nan, float(sum(p.count for p in engine.pieces))]
        lanes = torch.tensor(mine, dtype=torch.float64, device=self._session.device)
        dist.all_reduce(lanes)
        total, count = lanes.tolist()
        return math.sqrt(total / count) if math.isfinite(total) and count else 0.0
