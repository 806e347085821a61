"""Folding in a Ray task of its own: it takes no GPU and no thread of anything that trains, and nobody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stormsail.platform.checkpoint.folding import fold
from stormsail.platform.checkpoint.leases import ReadLease
from stormsail.platform.checkpoint.manifest import Manifest
from stormsail.platform.errors import StormsailError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import ObjectStore, StoreAddress

LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class FoldResult:
    """What came of folding a checkpoint.

    Attributes:
        ref: Which one.
        stored_bytes: Bytes of its new packs.
        why: What went wrong, or "".
    """

    ref: CheckpointRef
    stored_bytes: int = 0
    why: str = ""


class Compactor(Protocol):
    """Folds checkpoints somewhere else, one at a time; no call waits."""

    @property
    def busy(self) -> bool:
        """Whether one was begun and not yet polled to its end."""

    def start(self, ref: CheckpointRef) -> None:
        """Begin with a checkpoint."""

    def poll(self) -> FoldResult | None:
        """What came of the last one, once it is over."""


def fold_one(address: StoreAddress, ref: CheckpointRef) -> FoldResult:
    """Fold a checkpoint of the run's store; what goes wrong is told, not raised."""
    until = time.monotonic() + LIMIT_S
    try:
        manifest = fold_held(open_store(address), ref, cancelled=lambda: time.monotonic() > until)
    except StormsailError as error:
        return FoldResult(ref, why=str(error).replace("\n", "; "))
    return FoldResult(ref, stored_bytes=0 if manifest is None else manifest.stored_bytes)


def fold_held(
    store: ObjectStore, ref: CheckpointRef, *, cancelled: Callable[[], bool] = lambda: False
) -> Manifest | None:
    """`fold`, with a lease on the checkpoint: what is read is not deleted meanwhile, nor what is written swept.

    Raises:
        As `fold` does.
    """
    with ReadLease(store, [ref]) as lease:

        def over() -> bool:
            lease.renew()
            return cancelled()

        return fold(store, ref, time_s=time.time(), cancelled=over)


class RayCompactor:
    """Folds in Ray tasks. All methods are called from one thread.

    Args:
        address: The run's store.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._running: tuple[CheckpointRef, Any, float] | None = None

    @property
    def busy(self) -> bool:
        """Whether one was begun and not yet polled to its end."""
        return self._running is not None

    def start(self, ref: CheckpointRef) -> None:
        """Begin with a checkpoint."""
        import ray

        # No CPU is asked for either: the workers may hold all that there are, and for ever.
        task = ray.remote(num_cpus=0, num_gpus=0, max_retries=0)(fold_one)
        self._running = ref, task.remote(self._address, ref), time.monotonic()

    def poll(self) -> FoldResult | None:
        """What came of the last one, once it is over; one that takes twice its limit is ended."""
        import ray
        from ray.exceptions import RayError

        if self._running is None:
            return None
        ref, running, begun_s = self._running
        ready, _ = ray.wait([running], timeout=0)
        if not ready and time.monotonic() - begun_s < 2 * LIMIT_S:
            return None
        self._running = None
        if not ready:
            ray.cancel(running, force=True)
            return FoldResult(ref, why=f"it took more than {2 * LIMIT_S:.0f} s")
        try:
            found: FoldResult = ray.get(running)
        except RayError as error:
            return FoldResult(ref, why=f"its process died: {str(error).splitlines()[0]}")
        return found
