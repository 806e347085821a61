"""Loading a committed state into living workers: every rank reads its own ranges, verified, and all agree."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.shards import Shard
from stormsail.platform.errors import CheckpointError, StorageError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore
from stormsail.workers import vitals
from stormsail.workers.detect.verdict import DetectorState
from stormsail.workers.engine import ZeroEngine


@dataclass(frozen=True, slots=True)
class Restored:
    """What was loaded besides the engine's state.

    Attributes:
        meta: The checkpoint's metadata.
        detector: The detectors' baselines of that step.
    """

    meta: CheckpointMeta
    detector: DetectorState


def restore(engine: ZeroEngine, store: ObjectStore, ref: CheckpointRef) -> Restored | str:
    """Bring the engine to the state of `ref` (collective).

    Returns:
        What was restored, or what went wrong on this rank ("" if only on another one). When any rank fails, no rank
        has changed its state.
    """
    problem = ""
    found: tuple[Restored, list[Shard]] | None = None
    try:
        manifest = load_manifest(store, ref)
        restored = Restored(manifest.meta, DetectorState.from_json(manifest.meta.detector))
        found = restored, read_shards(store, manifest, engine.state_specs())
    except (CheckpointError, StorageError) as error:
        problem = str(error).replace("\n", "; ")
    if not vitals.all_agree(found is not None, device=engine.device) or found is None:
        return problem
    restored, shards = found
    engine.write_state(shards, _scalars(restored.meta))
    return restored


def _scalars(meta: CheckpointMeta) -> dict[str, list[float]]:
    found: dict[str, list[float]] = TypeAdapter(dict[str, list[float]]).validate_python(meta.optimizer)
    return found
