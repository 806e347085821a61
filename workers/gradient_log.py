"""Writing each step's gradient shard behind the back of training, so that no step is lost with a process.

With the log on, the reduced gradient is rounded to bf16 once, before norm, clip and step: what is logged is what
training goes on with. The copy in host memory is the whole stall; encoding and writing happen in a thread. An entry
that fails or comes late ends the log until the next checkpoint, and training goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from pydantic import JsonValue

from stormsail.platform.checkpoint.gradient_frame import Bits, Cut
from stormsail.platform.checkpoint.keys import log_key
from stormsail.platform.checkpoint.log_entry import LoggedStep, Outcome, pack_entry
from stormsail.platform.checkpoint.log_place import LogPlace, NodeLog
from stormsail.platform.checkpoint.packer import grid_of
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import InternalError, StorageError, StormsailError
from stormsail.workers.engine import LocalPiece, ZeroEngine

Broken = Callable[[int, int, str], None]

_NOTHING: Bits = np.zeros(0, np.uint16)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the loop knows of a finished step; the fields are those of `LoggedStep`."""

    generation: int
    step: int
    outcome: Outcome
    applied: int
    tokens: int
    seen: dict[str, JsonValue]
    row: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class _Job:
    entry: LoggedStep
    bits: Bits
    cuts: tuple[Cut, ...]
    stretch: int
    started_s: float


def is_logged(config: RunConfig, precision: str) -> bool:
    """Whether steps are logged that are computed in this precision, and their gradients therefore rounded to bf16.

    A function of the configuration, and part of the run's arithmetic, whether or not a log can be written. An FP32 repair
    of a run in another precision keeps its gradients as they are.
    """
    return config.checkpoint.gradient_log != "off" and precision == config.train.precision


def gradient_log_for(
    config: RunConfig, sink: LogPlace, *, rank: int, world_size: int, broken: Broken
) -> GradientLog | None:
    """The log of a run, or None for one that keeps none."""
    if config.checkpoint.gradient_log == "off":
        return None
    return GradientLog(
        sink,
        rank=rank,
        world_size=world_size,
        precision=config.train.precision,
        broken=broken,
        deadline_s=config.checkpoint.deadline_s,
        prune=sink.prune if isinstance(sink, NodeLog) else lambda _generation: None,
    )


class GradientLog:
    """The log of one rank; all methods are called from the training thread where nothing else is said.

    Args:
        sink: Where entries go.
        rank: This rank.
        world_size: Ranks that log a shard each.
        precision: The run's own; steps that a repair computes in another one are not logged.
        broken: Told (generation, step, why) when a step is not in the log and those after it are left out too.
        deadline_s: Limit of one entry, from the copy on.
        depth: Entries that may wait in memory; one more breaks the log.
        prune: Given the generation, removes what is not needed any more where nobody else would; called after saves.
    """

    def __init__(
        self,
        sink: LogPlace,
        *,
        rank: int,
        world_size: int,
        precision: str,
        broken: Broken,
        deadline_s: float,
        depth: int = 4,
        prune: Callable[[int], None] = lambda _generation: None,
    ) -> None:
        self._sink = sink
        self._rank = rank
        self._world_size = world_size
        self._precision = precision
        self._tell = broken
        self._deadline_s = deadline_s
        self._depth = depth
        self._prune = prune
        self._pruned_stretch = 0
        self._captured: tuple[Bits, float] | None = None
        self._stretch = 0
        self._cut_stretch = -1
        self._oldest_generation = 0
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._asked = self._done = 0
        self._bug: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="stormsail-gradient-log", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """A checkpoint was taken or loaded: whatever broke the log before it, from here on it counts again."""
        with self._changed:
            self._stretch += 1

    def capture(self, engine: ZeroEngine, *, scale: float) -> None:
        """Copy the gradient shard before it is scaled and applied."""
        if engine.precision == self._precision and not self._is_cut:
            self._captured = engine.gradient_bits(), scale

    def append(self, engine: ZeroEngine, facts: Facts) -> None:
        """Hand over the step that has just been finished, with the word sum of the state that it led to.

        Raises:
            InternalError: Writing has broken by a bug.
        """
        captured, self._captured = self._captured, None
        if self._is_cut:
            return
        if engine.precision != self._precision:
            self._cut()
            return
        entry = self._entry(engine, facts, captured)
        with self._changed:
            if self._bug is not None:
                raise InternalError(f"the gradient log has broken: {self._bug}") from self._bug
            full = self._asked - self._done >= self._depth
            if not full:
                self._asked += 1
        if full:
            self._break(entry, self._stretch, f"{self._depth} earlier steps are still being written")
        else:
            bits, pieces = (captured[0], cuts(engine.pieces)) if captured is not None else (_NOTHING, ())
            self._jobs.put(_Job(entry, bits, pieces, self._stretch, time.monotonic()))

    def drop_before(self, generation: int) -> None:
        """Forget what older generations have not finished: nobody would replay it."""
        self._oldest_generation = generation

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything handed over so far is settled; from any thread. Returns False if the time ran out."""
        with self._changed:
            asked = self._asked
            return self._changed.wait_for(lambda: self._done >= asked, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Finish what is pending, up to `timeout_s`, and end the thread."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    @property
    def _is_cut(self) -> bool:
        return self._cut_stretch == self._stretch

    def _cut(self) -> None:
        self._cut_stretch = self._stretch

    def _break(self, entry: LoggedStep, stretch: int, why: str) -> None:
        """The rest of the stretch is left out; said once for each stretch. From either thread."""
        with self._changed:
            known = self._cut_stretch >= stretch
            self._cut_stretch = max(self._cut_stretch, stretch)
        if not known:
            self._tell(entry.generation, entry.step, why)

    def _entry(self, engine: ZeroEngine, facts: Facts, captured: tuple[Bits, float] | None) -> LoggedStep:
        return LoggedStep(
            generation=facts.generation,
            step=facts.step,
            rank=self._rank,
            world_size=self._world_size,
            layout=layout(engine.pieces),
            outcome=facts.outcome,
            elements=captured[0].size if captured is not None else 0,
            scale=captured[1] if captured is not None else 1.0,
            rates=tuple(engine.learning_rates()),
            applied=facts.applied,
            tokens=facts.tokens,
            state_sum=engine.state_sum(),
            seen=facts.seen,
            row=facts.row,
        )

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._write(job)
            except StormsailError as error:
                self._break(job.entry, job.stretch, str(error).replace("\n", "; "))
            except Exception as error:  # noqa: BLE001 - the thread's entry: raised where training meets it next
                self._bug = error
            finally:
                with self._changed:
                    self._done += 1
                    self._changed.notify_all()

    def _write(self, job: _Job) -> None:
        entry = job.entry
        if self._cut_stretch >= job.stretch or entry.generation < self._oldest_generation:
            return
        data = pack_entry(entry, job.bits, job.cuts)
        if time.monotonic() - job.started_s > self._deadline_s:
            self._break(entry, job.stretch, f"it could not be written within {self._deadline_s:.0f} s")
            return
        self._sink.put(log_key(entry.generation, entry.step, self._rank), data, if_none_match=True)
        if job.stretch > self._pruned_stretch:
            self._pruned_stretch = job.stretch
            with contextlib.suppress(StorageError):  # the next save tries again; a place that is full refuses entries
                self._prune(entry.generation)


@lru_cache(maxsize=4)
def cuts(pieces: tuple[LocalPiece, ...]) -> tuple[Cut, ...]:
    """How a rank's shard lies in the parameters and their rows."""
    return tuple((piece.count, grid_of(piece.spec("gradient"))) for piece in pieces)


@lru_cache(maxsize=4)
def layout(pieces: tuple[LocalPiece, ...]) -> str:
    """Digest of what a rank's shard holds, so that no gradient is applied to other parameters than its own."""
    text = "\n".join(f"{piece.name} {piece.shape} {piece.start} {piece.count}" for piece in pieces)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
