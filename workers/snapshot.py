"""Saving state behind the back of training: the copy into a slot is the whole stall, the rest happens in a thread.

A sum of the live words is taken with the copy and checked against it before anything is written and again when all
is, so that a copy that was disturbed is never published. A slot holds its snapshot until it is needed again, so the
newest ones can be restored from it. A save that cannot be finished is abandoned and said so; training goes on.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stormsail.platform.checkpoint.delta import takes_delta
from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import write_part
from stormsail.platform.errors import InternalError, StormsailError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore
from stormsail.platform.vault.image import WORD_BYTES, describe, offsets
from stormsail.platform.vault.images import Image
from stormsail.platform.vault.slots import Slot, check_fits
from stormsail.workers.copying import copy_with_sums, sum_of
from stormsail.workers.deltas import Deltas
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.ring import Ring

Deliver = Callable[[RankPart, "CheckpointMeta | None", float], None]
Missed = Callable[[int, int, str], None]
Written = Callable[[int], None]
Acquire = Callable[[int], Sequence[Slot]]

_PREPARE_S = 2.0  # that the first snapshot may wait for its slots, once


def two_private_slots(size_bytes: int) -> list[Slot]:
    """Slots in this process's memory, for where there is no vault."""
    return [Slot.private(size_bytes) for _ in range(2)]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the rank's state lies in a slot: the same for every snapshot of an engine."""

    specs: tuple[ShardSpec, ...]
    starts: tuple[int, ...]
    size_bytes: int

    @classmethod
    def of(cls, specs: Sequence[ShardSpec]) -> _Layout:
        starts, size = offsets(specs)
        return cls(tuple(specs), tuple(starts), size)

    def shards(self, slot: Slot) -> list[Shard]:
        """The slot's words as the shards that they are."""
        firsts = (start // WORD_BYTES for start in self.starts)
        return [
            Shard(spec, slot.words[first : first + spec.count].view(np.float32))
            for spec, first in zip(self.specs, firsts, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Job:
    generation: int
    step: int
    ring: Ring
    slot: Slot
    layout: _Layout
    sums: list[int]
    meta: CheckpointMeta | None
    started_s: float
    keyframe: CheckpointRef | None = None

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(self.generation, self.step)


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
        deltas: Decides what a save builds on; None writes every save in full.
        acquire: Gives slots of a size in bytes; called in a thread. All copies that wait to be written lie in them.
        sealed: Told of each slot whose image is whole.
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
        deltas: Deltas | None = None,
        acquire: Acquire = two_private_slots,
        sealed: Callable[[Slot], None] = lambda _slot: None,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._deliver = deliver
        self._missed = missed
        self._written = written
        self._deadline_s = deadline_s
        self._deltas = deltas
        self._acquire = acquire
        self._sealed = sealed
        self._oldest_generation = 0
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._pending = 0
        self._broken: Exception | None = None
        self._changed = threading.Condition()
        self._engine: Callable[[], ZeroEngine | None] = lambda: None
        self._layout: _Layout | None = None
        self._ring: Ring | None = None
        self._asked_s = 0.0
        self._has_waited = False
        self._thread = threading.Thread(target=self._run, name="stormsail-snapshot", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------- the training thread

    def prepare(self, engine: ZeroEngine) -> None:
        """Get slots for this engine's state in the background, unless those that there are fit."""
        if self._engine() is engine:
            return
        self._engine = weakref.ref(engine)
        layout = _Layout.of(engine.state_specs())
        if layout == self._layout:
            return
        if self._ring is not None:
            self._ring.close()
        self._layout, self._ring = layout, None
        self._asked_s, self._has_waited = time.monotonic(), False
        threading.Thread(target=self._get_slots, args=(layout,), name="stormsail-slots", daemon=True).start()

    def take(self, engine: ZeroEngine, *, generation: int, step: int, meta: CheckpointMeta | None) -> bool:
        """Copy the state now and write it later.

        Returns:
            False if there is no slot for it: earlier saves have not finished, or the slots are not there yet. Only the
            first one waits for them, a moment; this one was left out.
        """
        keyframe = self._deltas.plan(CheckpointRef(generation, step)) if self._deltas is not None else None
        self.prepare(engine)  # in time, if it was not called before
        ring, layout = self._slots(), self._layout
        slot = ring.take() if ring is not None else None
        if ring is None or slot is None or layout is None:
            self._missed(generation, step, self._why_no_slot(ring))
            return False
        live = [tensor for piece, _, tensor in engine.live_buffers() if piece.count]
        sums = copy_with_sums(live, [shard.words for shard in layout.shards(slot)])
        with self._changed:
            self._pending += 1
        self._jobs.put(_Job(generation, step, ring, slot, layout, sums, meta, time.monotonic(), keyframe))
        return True

    def _why_no_slot(self, ring: Ring | None) -> str:
        if ring is None:
            waited_s = time.monotonic() - self._asked_s
            return f"its slots are not there yet: memory for them was asked for {waited_s:.0f} s ago"
        if self._pending:
            return f"{self._pending} earlier saves are still being written"
        return "all slots are being read by somebody else"

    def _slots(self) -> Ring | None:
        with self._changed:
            if not self._has_waited:
                self._changed.wait_for(self._has_slots, _PREPARE_S)
                self._has_waited = True
            if self._broken is not None:
                raise InternalError(
                    f"saving has broken: {type(self._broken).__name__}: {self._broken}"
                ) from self._broken
            return self._ring

    def images(self, ref: CheckpointRef) -> Iterator[Image]:
        """What is left of a checkpoint in this process's slots."""
        return iter(()) if self._ring is None else self._ring.images(ref)

    def drop_before(self, generation: int) -> None:
        """Abandon what older generations have not finished: nobody would accept it."""
        self._oldest_generation = generation

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is pending, slots that were asked for included. Returns False if the time ran out."""

        def settled() -> bool:
            return self._pending == 0 and (self._layout is None or self._has_slots())

        with self._changed:
            return self._changed.wait_for(settled, timeout_s)

    def _has_slots(self) -> bool:
        return self._ring is not None or self._broken is not None

    def close(self, timeout_s: float) -> None:
        """Finish what is pending, up to `timeout_s`, and end the thread; what lies in the vault stays there."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    # ---------------------------------------------------------------- other threads

    def _get_slots(self, layout: _Layout) -> None:
        try:
            ring = Ring(self._acquire(layout.size_bytes))
            for slot in ring.slots:
                check_fits(slot, layout.size_bytes)
                slot.warm()
        except Exception as error:  # noqa: BLE001 - the thread's entry: raised where training meets it next
            with self._changed:
                self._broken = error
                self._changed.notify_all()
            return
        with self._changed:
            if self._layout is layout:
                self._ring = ring
            else:
                ring.close()  # another engine has come meanwhile
            self._changed.notify_all()

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
                    job.ring.give_back(job.slot)
                    self._pending -= 1
                    self._changed.notify_all()

    def _write(self, job: _Job) -> None:
        def cancelled() -> bool:
            return job.generation < self._oldest_generation or self._age_s(job) > self._deadline_s

        if cancelled():
            self._missed(job.generation, job.step, "abandoned: the run has moved on, or the deadline has passed")
            return
        shards = job.layout.shards(job.slot)
        if not self._is_as_it_was(job, shards):
            return
        base = None
        if self._deltas is not None and job.keyframe is not None:
            base = self._deltas.base_for(job.ref, job.keyframe)
        part = write_part(
            self._store,
            generation=job.generation,
            step=job.step,
            rank=self._rank,
            world_size=self._world_size,
            shards=shards,
            cancelled=cancelled,
            base=base,
        )
        record = describe(part, shards, job.layout.starts)
        if not self._is_as_it_was(job, shards):
            return
        job.slot.seal(record)
        if self._deltas is not None and job.keyframe is not None:
            self._deltas.wrote(part, _copies(shards) if job.keyframe == job.ref else shards, job.keyframe)
        self._written(job.step)
        self._sealed(job.slot)
        self._deliver(part, job.meta, self._age_s(job))

    def _is_as_it_was(self, job: _Job, shards: Sequence[Shard]) -> bool:
        for shard, live_sum in zip(shards, job.sums, strict=True):
            if sum_of(shard.words) != live_sum:
                self._missed(job.generation, job.step, f"the copy of {shard.spec.name} differs from the live state")
                return False
        return True

    @staticmethod
    def _age_s(job: _Job) -> float:
        return time.monotonic() - job.started_s


def _copies(shards: Sequence[Shard]) -> list[Shard]:
    """What later saves build on, out of the slot, which the next snapshots need."""
    return [Shard(shard.spec, shard.values.copy()) for shard in shards if takes_delta(shard.spec.component)]
