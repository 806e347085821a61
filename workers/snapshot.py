"""Saving state behind the back of training: the copy is the whole stall, the rest happens in a thread.

A word sum of the live buffers is taken with the copy and checked against it before anything is written, so
that a copy that was disturbed is never published. A save that cannot be finished is abandoned and said so;
training goes on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stormsail.platform.checkpoint.digest import word_sum
from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.checkpoint.shards import Shard
from stormsail.platform.checkpoint.writer import write_part
from stormsail.platform.errors import InternalError, StormsailError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore
from stormsail.workers.deltas import Deltas
from stormsail.workers.engine import ZeroEngine

Deliver = Callable[[RankPart, "CheckpointMeta | None", float], None]
Missed = Callable[[int, int, str], None]
Written = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Job:
    generation: int
    step: int
    shards: list[Shard]
    sums: list[int]
    meta: CheckpointMeta | None
    started_s: float
    keyframe: CheckpointRef | None = None


class SnapshotWriter:
    """Takes snapshots in the training thread and writes them in its own.

    Args:
        store: The run's store.
        rank: This rank.
        world_size: Ranks that write a part each.
        deliver: Hands a written part (and rank 0's metadata, and the seconds since the copy) to the committer.
        missed: Told (generation, step, why) when a save is abandoned.
        deadline_s: Limit of one save, from the copy on.
        written: Told the step of a save when this rank's part is on the store, before it is handed over.
        depth: Copies that may wait in memory; one more is not taken.
        deltas: Decides what a save builds on; None writes every save in full.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        rank: int,
        world_size: int,
        deliver: Deliver,
        missed: Missed,
        deadline_s: float,
        written: Written = lambda _step: None,
        depth: int = 2,
        deltas: Deltas | None = None,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._deliver = deliver
        self._missed = missed
        self._written = written
        self._deadline_s = deadline_s
        self._depth = depth
        self._deltas = deltas
        self._oldest_generation = 0
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._pending = 0
        self._broken: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="stormsail-snapshot", daemon=True)
        self._thread.start()

    def take(self, engine: ZeroEngine, *, generation: int, step: int, meta: CheckpointMeta | None) -> bool:
        """Copy the state now and write it later.

        Returns:
            False if earlier saves have not finished and this one was left out.
        """
        keyframe = self._deltas.plan(CheckpointRef(generation, step)) if self._deltas is not None else None
        with self._changed:
            if self._broken is not None:
                raise InternalError(
                    f"saving has broken: {type(self._broken).__name__}: {self._broken}"
                ) from self._broken
            if self._pending >= self._depth:
                self._missed(generation, step, f"{self._pending} earlier saves are still being written")
                return False
            self._pending += 1
        sums = [word_sum(live.detach().cpu().numpy()) for piece, _, live in engine.live_buffers() if piece.count]
        self._jobs.put(_Job(generation, step, engine.copy_state(), sums, meta, time.monotonic(), keyframe))
        return True

    def drop_before(self, generation: int) -> None:
        """Abandon what older generations have not finished: nobody would accept it."""
        self._oldest_generation = generation

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is pending. Returns False if the time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending == 0, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Finish what is pending, up to `timeout_s`, and end the thread."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._write(job)
            except StormsailError as error:
                self._missed(job.generation, job.step, str(error).replace("\n", "; "))
            except Exception as error:  # noqa: BLE001 - the thread's entry: raised where training meets it next
                self._broken = error
            finally:
                with self._changed:
                    self._pending -= 1
                    self._changed.notify_all()

    def _write(self, job: _Job) -> None:
        def cancelled() -> bool:
            return job.generation < self._oldest_generation or self._age_s(job) > self._deadline_s

        if cancelled():
            self._missed(job.generation, job.step, "abandoned: the run has moved on, or the deadline has passed")
            return
        for shard, live_sum in zip(job.shards, job.sums, strict=True):
            if word_sum(np.asarray(shard.values)) != live_sum:
                self._missed(job.generation, job.step, f"the copy of {shard.spec.name} differs from the live state")
                return
        base = None
        if self._deltas is not None and job.keyframe is not None:
            base = self._deltas.base_for(CheckpointRef(job.generation, job.step), job.keyframe)
        part = write_part(
            self._store,
            generation=job.generation,
            step=job.step,
            rank=self._rank,
            world_size=self._world_size,
            shards=job.shards,
            cancelled=cancelled,
            base=base,
        )
        if self._deltas is not None and job.keyframe is not None:
            self._deltas.wrote(part, job.shards, job.keyframe)
        self._written(job.step)
        self._deliver(part, job.meta, self._age_s(job))

    @staticmethod
    def _age_s(job: _Job) -> float:
        return time.monotonic() - job.started_s
