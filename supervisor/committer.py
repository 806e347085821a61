"""The commit role: gathers the ranks' parts of a save and publishes the checkpoint, or abandons it in time.

Works in a thread of its own and never involves the training group. A part of an older generation is refused:
a worker that was cut off must not overwrite what its successor wrote.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from stormsail.platform.checkpoint.manifest import CheckpointMeta, Manifest, RankPart
from stormsail.platform.checkpoint.writer import SaveAbandonedError, commit
from stormsail.platform.errors import CheckpointError, StorageError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore

# How long a decision, or the end of an attempt, waits for a save that all ranks have written.
SETTLE_S = 30.0

_log = logging.getLogger("stormsail.committer")


@dataclass(slots=True)
class _Save:
    started_s: float
    parts: dict[int, RankPart] = field(default_factory=dict)
    meta: CheckpointMeta | None = None

    @property
    def complete(self) -> bool:
        return self.meta is not None and len(self.parts) == self.meta.world_size


class OnMissed(Protocol):
    """Hears of a save that was given up."""

    def __call__(self, generation: int, step: int, why: str, /, *, finite: bool = True) -> None:
        """Take note; `finite` is false where the state itself held numbers that are not."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A published checkpoint.

    Attributes:
        manifest: What was published.
        took_s: Seconds from the first part's arrival to the commit, plus what the ranks needed before.
    """

    manifest: Manifest
    took_s: float


class Committer:
    """Publishes checkpoints as their parts come in.

    Args:
        store: The run's store.
        deadline_s: How long a save may wait for its last part, and how long its publication may take then.
        on_commit: Called with each published checkpoint, from this object's thread.
        on_missed: Called for each abandoned one.
        parent_of: Gives a generation's parent checkpoint.
        on_broken: Told of a bug; without it a committer that no longer works would go unnoticed.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        deadline_s: float,
        on_commit: Callable[[Committed], None],
        on_missed: OnMissed,
        parent_of: Callable[[int], CheckpointRef | None],
        on_broken: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        self._store = store
        self._deadline_s = deadline_s
        self._on_commit = on_commit
        self._on_missed = on_missed
        self._parent_of = parent_of
        self._on_broken = on_broken
        self._saves: dict[CheckpointRef, _Save] = {}
        self._took_s: dict[CheckpointRef, float] = {}
        self._oldest_generation = 0
        self._busy = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="stormsail-committer", daemon=True)
        self._thread.start()

    def add(self, part: RankPart, meta: CheckpointMeta | None, took_s: float) -> None:
        """Take a rank's part; from any thread."""
        ref = CheckpointRef(part.generation, part.step)
        if not self._take(ref, part, meta, took_s):
            # Outside the lock: who hears of it takes locks of its own, under which it calls this object.
            self._on_missed(part.generation, part.step, f"rank {part.rank} wrote for a generation that is over")

    def _take(self, ref: CheckpointRef, part: RankPart, meta: CheckpointMeta | None, took_s: float) -> bool:
        with self._changed:
            if part.generation < self._oldest_generation:
                return False
            save = self._saves.setdefault(ref, _Save(time.monotonic()))
            save.parts[part.rank] = part
            save.meta = meta or save.meta
            self._took_s[ref] = max(took_s, self._took_s.get(ref, 0.0))
            self._changed.notify_all()
            return True

    def advance(self, generation: int) -> None:
        """Refuse and abandon everything older than `generation`, except saves that are already complete."""
        with self._changed:
            self._oldest_generation = generation
            stale = [ref for ref, save in self._saves.items() if ref.generation < generation and not save.complete]
            for ref in stale:
                del self._saves[ref]
                self._took_s.pop(ref, None)
        for ref in stale:
            self._on_missed(ref.generation, ref.step, "the run moved on before all ranks had written")

    def settle(self, timeout_s: float) -> bool:
        """Wait until no complete save is waiting to be published."""

        def settled() -> bool:
            return not self._busy and not any(save.complete for save in self._saves.values())

        with self._changed:
            return self._changed.wait_for(settled, timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing at all is pending."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy and not self._saves, timeout_s)

    def close(self) -> None:
        """End the thread; pending saves are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(10.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._ready() is not None, timeout=1.0)
                if self._closed:
                    return
                late = [ref for ref, save in self._saves.items() if not save.complete and self._is_late(save)]
                for ref in late:
                    del self._saves[ref]
                    self._took_s.pop(ref, None)
                ready = self._ready()
                save = self._saves.pop(ready) if ready is not None else None
                self._busy = save is not None
            for ref in late:
                self._guarded(self._give_up, ref)
            if ready is not None and save is not None:
                self._guarded(self._publish, ready, save)
            with self._changed:
                self._busy = False
                if ready is not None:
                    self._took_s.pop(ready, None)
                self._changed.notify_all()

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """One piece of work; what goes wrong with it is no reason to leave the next one out."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - the thread's entry: others wait for it
            self._unheard(error)

    def _give_up(self, ref: CheckpointRef) -> None:
        self._on_missed(ref.generation, ref.step, f"not all ranks wrote within {self._deadline_s:.0f} s")

    def _unheard(self, error: Exception) -> None:
        """What happened could not be noted."""
        if not isinstance(error, StorageError):
            self._on_broken(error)
            return
        # The run is another supervisor's, or the disk is full. Whoever drives the run meets the same error; this
        # thread must live, because others wait for it.
        _log.warning("committer.unheard why=%r", error.what)

    def _ready(self) -> CheckpointRef | None:
        complete = [ref for ref, save in self._saves.items() if save.complete]
        return min(complete, key=lambda ref: (ref.generation, ref.step)) if complete else None

    def _is_late(self, save: _Save) -> bool:
        return time.monotonic() - save.started_s > self._deadline_s

    def _publish(self, ref: CheckpointRef, save: _Save) -> None:
        if save.meta is None:
            return
        spoilt = {part.rank: part.nonfinite for part in save.parts.values() if part.nonfinite}
        if spoilt:
            # Never restored anyway; and a save that is refused is heard of a step before its gradients tell.
            where = ", ".join(f"{count} on rank {rank}" for rank, count in sorted(spoilt.items()))
            why = f"weights or moments hold numbers that are not finite: {where}"
            self._on_missed(ref.generation, ref.step, why, finite=False)
            return
        limit_s = time.monotonic() + self._deadline_s
        try:
            manifest = commit(
                self._store,
                list(save.parts.values()),
                save.meta,
                parent=self._parent_of(ref.generation),
                time_s=time.time(),
                cancelled=lambda: time.monotonic() > limit_s,
            )
        except SaveAbandonedError:
            why = f"all ranks wrote, but it could not be published within {self._deadline_s:.0f} s"
            self._on_missed(ref.generation, ref.step, why)
            return
        except (StorageError, CheckpointError) as error:
            self._on_missed(ref.generation, ref.step, str(error).replace("\n", "; "))
            return
        took_s = time.monotonic() - save.started_s + self._took_s.get(ref, 0.0)
        self._on_commit(Committed(manifest, took_s))
