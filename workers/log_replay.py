"""Taking steps again from the gradient log: the same optimizer arithmetic on the live engine, without forward or backward.

Every rank applies its own shards, and before each step all agree that all can. After each step the state must have
the word sum that was logged with it; if it has not, on any rank, the caller loads the checkpoint once more, replays up
to that step, and computes from there on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pydantic import TypeAdapter

from stormsail.platform.checkpoint.gradient_frame import Bits
from stormsail.platform.checkpoint.keys import log_key
from stormsail.platform.checkpoint.log_entry import LoggedStep
from stormsail.platform.checkpoint.log_place import LogPlace, read_logged
from stormsail.platform.errors import CheckpointError, InternalError, ObjectMissingError, StorageError
from stormsail.platform.messages import LogSpan, StepRow
from stormsail.workers import vitals
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import Observation, judge
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.gradient_log import layout

T = TypeVar("T")

_ROW = TypeAdapter(StepRow)
_SEEN = TypeAdapter(Observation)
_Entry: TypeAlias = tuple[LoggedStep, Bits]
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the log could not be replayed to its end.

    Attributes:
        step: The first step that cannot be taken from it.
        problem: What is wrong, in the words of the rank that found it.
    """

    step: int
    problem: str


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
    patience_s: float,
    rounded_at: Callable[[int], bool] = lambda _step: False,
) -> Replayed | Refused:
    """Apply the logged steps to the restored state (collective).

    Args:
        engine: Holds the state of the first step.
        source: Where the entries are.
        spans: The steps, oldest first, without a gap; at least one.
        rank: This rank.
        world_size: Ranks of this world.
        detector: The detectors of the restored state.
        policy: Their limits.
        patience_s: How long a store that is away is waited for at each step.
        rounded_at: Says before which steps the live state was rounded.

    Returns:
        Where it has led, or why it could not be done. The state is then neither the checkpoint's nor a later one, and
        must be loaded again.
    """
    refused, rows, last = None, [], None
    for mine in _read_ahead(engine, _Log(source, rank, world_size, patience_s), spans):
        found = _agreed(engine, refused or mine)
        if isinstance(found, Refused):
            return found
        if last is not None and rounded_at(found[0].step):
            engine.round_state()
        last, bits = found
        refused = _apply(engine, last, bits)
        if last.seen:
            detector, _ = judge(detector, _SEEN.validate_python(last.seen), policy)
        rows += [_ROW.validate_python(last.row)] if last.row else []
    refused = _agreed(engine, refused)
    if refused is not None:
        return refused
    if last is None:
        raise InternalError("the gradient log is to be replayed, but no step of it was named")
    engine.drop()
    return Replayed(last.step + 1, last.applied, last.tokens, detector, tuple(rows))


@dataclass(frozen=True, slots=True)
class _Log:
    """What this rank reads."""

    source: LogPlace
    rank: int
    world_size: int
    patience_s: float


def _read_ahead(engine: ZeroEngine, log: _Log, spans: Sequence[LogSpan]) -> Iterator[_Entry | Refused]:
    """The entries in order; the next one is read and decoded while one is applied."""
    places = [(span.generation, step) for span in spans for step in range(span.first, span.stop)]
    with ThreadPoolExecutor(1) as reader:
        ahead: Future[_Entry | Refused] | None = None
        for place in places:
            before, ahead = ahead, reader.submit(_read, engine, log, place)
            if before is not None:
                yield before.result()
        if ahead is not None:
            yield ahead.result()


def _agreed(engine: ZeroEngine, mine: T | Refused) -> T | Refused:
    """What this rank has, or what is wrong at the earliest step of any rank, on all ranks (collective)."""
    if vitals.all_agree(not isinstance(mine, Refused), device=engine.device):
        return mine
    told = vitals.gather_objects(mine if isinstance(mine, Refused) else None)
    return min((refused for refused in told if refused is not None), key=lambda refused: refused.step)


def _read(engine: ZeroEngine, log: _Log, place: tuple[int, int]) -> _Entry | Refused:
    generation, step = place
    key = log_key(generation, step, log.rank)
    try:
        entry, bits = _read_patiently(log, key)
    except (CheckpointError, StorageError) as error:
        return Refused(step, str(error).replace("\n", "; "))
    problem = ""
    if (entry.generation, entry.step, entry.rank) != (generation, step, log.rank):
        problem = f"this is the log of step {entry.step} of rank {entry.rank}, generation {entry.generation}"
    elif entry.world_size != log.world_size or entry.layout != layout(engine.pieces):
        problem = f"it was written by another world ({entry.world_size} ranks), or for another model"
    return Refused(step, f"{key}: {problem}") if problem else (entry, bits)


def _read_patiently(log: _Log, key: str) -> _Entry:
    pause, deadline = threading.Event(), time.monotonic() + log.patience_s
    while True:
        try:
            return read_logged(log.source, key)
        except ObjectMissingError:
            raise
        except StorageError:
            if time.monotonic() + _RETRY_S > deadline:
                raise
            pause.wait(_RETRY_S)


def _apply(engine: ZeroEngine, entry: LoggedStep, bits: Bits) -> Refused | None:
    """Do what the loop did. Returns what is wrong with the outcome, or None."""
    if entry.outcome == "applied":
        engine.write_gradient(bits)
        if entry.scale != 1.0:
            engine.scale_gradients(entry.scale)
        engine.restore_learning_rates(entry.rates)
        if not engine.apply():
            return Refused(entry.step, f"DeepSpeed refused the logged update of step {entry.step}")
    if engine.state_sum() != entry.state_sum:
        problem = (
            f"the state after the logged step {entry.step} of rank {entry.rank} is not the one that was there before"
        )
        return Refused(entry.step, problem)
    return None
