"""Taking steps again from the gradient log: the same optimizer arithmetic on the live engine, without forward or backward.

Every rank applies its own shards, and before each step all agree that all can. After each step the state must have
the word sum that was logged with it; if it has not, on any rank, the caller loads the checkpoint once more and
computes the steps instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from pydantic import TypeAdapter

from stormsail.platform.checkpoint.gradient_frame import Bits
from stormsail.platform.checkpoint.keys import log_key
from stormsail.platform.checkpoint.log_entry import LoggedStep
from stormsail.platform.checkpoint.log_place import LogPlace, read_logged
from stormsail.platform.errors import CheckpointError, InternalError, StorageError
from stormsail.platform.messages import LogSpan, StepRow
from stormsail.workers import vitals
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import Observation, judge
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.gradient_log import layout

_ROW = TypeAdapter(StepRow)
_SEEN = TypeAdapter(Observation)
_Found: TypeAlias = tuple[LoggedStep, Bits] | str  # or what is wrong with the entry


@dataclass(frozen=True, slots=True)
class Replayed:
    """Where the replay has brought this rank.

    Attributes:
        step: Next step to run.
        applied: Optimizer updates so far.
        tokens: Real tokens so far.
        detector: The detectors, as if they had seen the steps (rank 0; nobody else judges).
        rows: The steps as they were reported when they were computed (rank 0).
    """

    step: int
    applied: int
    tokens: int
    detector: DetectorState
    rows: tuple[StepRow, ...]


def replay(
    engine: ZeroEngine,
    source: LogPlace,
    spans: Sequence[LogSpan],
    *,
    rank: int,
    world_size: int,
    detector: DetectorState,
    policy: Policy,
    rounded_at: Callable[[int], bool] = lambda _step: False,
) -> Replayed | str:
    """Apply the logged steps to the restored state (collective).

    Args:
        engine: Holds the state of the first step.
        source: Where the entries are.
        spans: The steps, oldest first, without a gap; at least one.
        rank: This rank.
        world_size: Ranks of this world.
        detector: The detectors of the restored state.
        policy: Their limits.
        rounded_at: Says before which steps the live state was rounded.

    Returns:
        Where it has led, or why it could not be done, in the words of the first rank that found it. The state is
        then neither the checkpoint's nor a later one, and must be loaded again.
    """
    problem, rows, last = "", [], None
    for found in _read_ahead(engine, source, spans, rank=rank, world_size=world_size):
        refused = _refused(engine, problem or (found if isinstance(found, str) else ""))
        if refused or isinstance(found, str):
            return refused
        if last is not None and rounded_at(found[0].step):
            engine.round_state()
        last, bits = found
        problem = _apply(engine, last, bits)
        if last.seen:
            detector, _ = judge(detector, _SEEN.validate_python(last.seen), policy)
        rows += [_ROW.validate_python(last.row)] if last.row else []
    if refused := _refused(engine, problem):
        return refused
    if last is None:
        raise InternalError("the gradient log is to be replayed, but no step of it was named")
    engine.drop()
    return Replayed(last.step + 1, last.applied, last.tokens, detector, tuple(rows))


def _read_ahead(
    engine: ZeroEngine, source: LogPlace, spans: Sequence[LogSpan], *, rank: int, world_size: int
) -> Iterator[_Found]:
    """The entries in order; the next one is read and decoded while one is applied."""
    places = [(span.generation, step) for span in spans for step in range(span.first, span.stop)]
    with ThreadPoolExecutor(1) as reader:
        ahead: Future[_Found] | None = None
        for place in places:
            before, ahead = ahead, reader.submit(_read, engine, source, place, rank, world_size)
            if before is not None:
                yield before.result()
        if ahead is not None:
            yield ahead.result()


def _refused(engine: ZeroEngine, problem: str) -> str:
    """The first problem of any rank, on all ranks; "" if none has one (collective)."""
    if vitals.all_agree(not problem, device=engine.device):
        return ""
    return next(text for text in vitals.gather_objects(problem) if text)


def _read(engine: ZeroEngine, source: LogPlace, place: tuple[int, int], rank: int, world_size: int) -> _Found:
    generation, step = place
    key = log_key(generation, step, rank)
    try:
        entry, bits = read_logged(source, key)
    except (CheckpointError, StorageError) as error:
        return str(error).replace("\n", "; ")
    if (entry.generation, entry.step, entry.rank) != (generation, step, rank):
        return f"{key}: this is the log of step {entry.step} of rank {entry.rank}, generation {entry.generation}"
    if entry.world_size != world_size or entry.layout != layout(engine.pieces):
        return f"{key}: it was written by another world ({entry.world_size} ranks), or for another model"
    return entry, bits


def _apply(engine: ZeroEngine, entry: LoggedStep, bits: Bits) -> str:
    """Do what the loop did. Returns what is wrong with the outcome, or ""."""
    if entry.outcome == "applied":
        engine.write_gradient(bits)
        if entry.scale != 1.0:
            engine.scale_gradients(entry.scale)
        engine.restore_learning_rates(entry.rates)
        if not engine.apply():
            return f"DeepSpeed refused the logged update of step {entry.step}"
    if engine.state_sum() != entry.state_sum:
        return f"the state after the logged step {entry.step} of rank {entry.rank} is not the one that was there before"
    return ""
