"""Loading a committed state into living workers: every rank reads its own ranges, verified, and all agree."""

from __future__ import annotations

from stormsail.platform.checkpoint.manifest import CheckpointMeta, Manifest
from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.errors import CheckpointError, StorageError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore
from stormsail.workers import vitals
from stormsail.workers.engine import ZeroEngine


def restore(engine: ZeroEngine, store: ObjectStore, ref: CheckpointRef) -> tuple[CheckpointMeta | None, str]:
    """Bring the engine to the state of `ref` (collective).

    Returns:
        The checkpoint's metadata and "", or None and what went wrong on this rank ("" if only on another one).
        When any rank fails, no rank has changed its state.
    """
    problem = ""
    manifest: Manifest | None = None
    shards = []
    try:
        manifest = load_manifest(store, ref)
        shards = read_shards(store, manifest, engine.state_specs())
    except (CheckpointError, StorageError) as error:
        problem = str(error).replace("\n", "; ")
    if not vitals.all_agree(not problem, device=engine.device) or manifest is None:
        return None, problem
    engine.write_state(shards, dict(manifest.meta.optimizer))
    return manifest.meta, ""
