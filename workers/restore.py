"""Loading a committed state into living workers: every rank reads its own ranges, verified, and all agree.

What is loaded is what was committed: the manifest comes from the store. Its bytes come from wherever they are nearest,
which may be another place for each rank, or for each piece.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.checkpoint.shards import Shard
from stormsail.platform.errors import CheckpointError, StorageError, WorkerFaultError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore
from stormsail.platform.vault.images import Image
from stormsail.platform.vault.nearest import Trouble, read_nearest
from stormsail.workers import vitals
from stormsail.workers.detect.rules.registry import AnyRule
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.engine import ZeroEngine

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Restored:
    """What was loaded besides the engine's state.

    Attributes:
        meta: The checkpoint's metadata.
        detector: The detectors' baselines of that step.
        bytes_from: Bytes that this rank took from each place.
    """

    meta: CheckpointMeta
    detector: DetectorState
    bytes_from: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nearby:
    """Where a rank looks before it asks the store.

    Attributes:
        images: Gives the images of a checkpoint, nearest first, one by one.
        trouble: Told of each image that could not be used.
    """

    images: Callable[[CheckpointRef], Iterator[Image]] = lambda _ref: iter(())
    trouble: Trouble = lambda _image, _error: None


NOWHERE = Nearby()


def restore(
    engine: ZeroEngine,
    store: ObjectStore,
    ref: CheckpointRef,
    *,
    rules: Sequence[AnyRule],
    patience_s: float,
    nearby: Nearby = NOWHERE,
) -> Restored | str:
    """Bring the engine to the state of `ref` (collective).

    Args:
        engine: Of the checkpoint's configuration, in any precision.
        store: The run's store.
        ref: Which checkpoint.
        rules: The detectors whose baselines are wanted.
        patience_s: How long a store that is away is waited for; a checkpoint is none the worse for it.
        nearby: Where else the state may be.

    Returns:
        What was restored, or what is wrong with the checkpoint, in the words of the first rank that found it. When
        any rank fails, no rank has changed its state.

    Raises:
        StateMismatchError: The checkpoint is whole, but of another model, optimizer or version.
        StorageError: The store stayed away.
        WorkerFaultError: It stayed away from another rank.
    """
    with ExitStack() as held:
        return _restore(engine, store, ref, patience_s, _Reading(rules, nearby, held))


@dataclass(frozen=True, slots=True)
class _Reading:
    """Images stay open, and so unchanged, until the state that lies in them has been copied."""

    rules: Sequence[AnyRule]
    nearby: Nearby
    held: ExitStack

    def images(self, ref: CheckpointRef) -> Iterator[Image]:
        for image in self.nearby.images(ref):
            self.held.callback(image.close)
            yield image


def _restore(
    engine: ZeroEngine, store: ObjectStore, ref: CheckpointRef, patience_s: float, reading: _Reading
) -> Restored | str:
    problem, away = "", None
    found: tuple[Restored, list[Shard]] | None = None
    try:
        found = _read_patiently(engine, store, ref, patience_s, reading)
    except CheckpointError as error:
        problem = str(error).replace("\n", "; ")
    except StorageError as error:
        away = error
    if not vitals.all_agree(away is None, device=engine.device):
        raise away or WorkerFaultError("another rank could not reach the store while loading", where=store.url)
    if not vitals.all_agree(found is not None, device=engine.device) or found is None:
        return next(text for text in vitals.gather_objects(problem) if text)
    restored, shards = found
    engine.write_state(shards, _scalars(restored.meta))
    return restored


def _read_patiently(
    engine: ZeroEngine, store: ObjectStore, ref: CheckpointRef, patience_s: float, reading: _Reading
) -> tuple[Restored, list[Shard]]:
    pause, deadline = threading.Event(), time.monotonic() + patience_s
    while True:
        try:
            return _read(engine, store, ref, reading)
        except StorageError:
            if time.monotonic() + _RETRY_S > deadline:
                raise
            pause.wait(_RETRY_S)


def _read(
    engine: ZeroEngine, store: ObjectStore, ref: CheckpointRef, reading: _Reading
) -> tuple[Restored, list[Shard]]:
    manifest = load_manifest(store, ref)
    detector = DetectorState.from_json(manifest.meta.detector, reading.rules)
    found = read_nearest(store, manifest, engine.state_specs(), reading.images(ref), reading.nearby.trouble)
    return Restored(manifest.meta, detector, found.bytes_from), found.shards


def _scalars(meta: CheckpointMeta) -> dict[str, list[float]]:
    found: dict[str, list[float]] = TypeAdapter(dict[str, list[float]]).validate_python(meta.optimizer)
    return found
