"""Writing a checkpoint: each rank its packs and then its part; one committer the manifest and then the commit.

No commit, no checkpoint: whatever is left of a save that died is never offered, and its keys carry the generation, so
it can never mix with a later attempt. Nothing here talks to other ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from stormsail.platform.checkpoint.heads import heads
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.keys import commit_key, manifest_key, part_key
from stormsail.platform.checkpoint.manifest import (
    CheckpointMeta,
    Commit,
    Manifest,
    PackEntry,
    RankPart,
    pack_manifest,
    unpack_manifest,
)
from stormsail.platform.checkpoint.merge import merge
from stormsail.platform.checkpoint.opening import load_links
from stormsail.platform.checkpoint.packer import Packer, SaveAbandonedError, put_once
from stormsail.platform.checkpoint.records import seal, seal_packed, unseal
from stormsail.platform.checkpoint.runformat import check_format, ensure_format
from stormsail.platform.checkpoint.shards import Shard
from stormsail.platform.errors import CheckpointError, FencedError, PreconditionFailedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore

__all__ = ["PACK_BYTES", "SaveAbandonedError", "check_format", "commit", "ensure_format", "write_part"]

# Below 32 MiB with its last frame: memory of larger blocks goes back to the system, and comes fresh for the next pack.
PACK_BYTES = 24 << 20


def write_part(
    store: ObjectStore,
    *,
    generation: int,
    step: int,
    rank: int,
    world_size: int,
    shards: Iterable[Shard],
    cancelled: Callable[[], bool],
    pack_bytes: int = PACK_BYTES,
    base: Keyframe | None = None,
) -> RankPart:
    """Write one rank's shards: packs first, the part last. Runs in any thread; holds about one pack in memory.

    Args:
        store: The run's store.
        generation: Of the writing world; in every key.
        step: Global batches consumed.
        rank: Of the writer.
        world_size: Of the writing world.
        shards: Consumed one at a time; an empty shard says that the tensor exists but nothing of it lies here.
        cancelled: Asked before each frame and each request.
        pack_bytes: A pack is closed once it is at least this long.
        base: The keyframe to write differences to, wherever it holds the same elements and the component is worth it.

    Raises:
        SaveAbandonedError: `cancelled` said so.
        FencedError: Somebody else wrote other bytes under this rank's keys.
        StorageError: The store failed.
    """
    packer = Packer(store, CheckpointRef(generation, step), rank, pack_bytes, cancelled, base=base)
    for shard in shards:
        packer.add(shard)
    packer.close()
    part = RankPart(
        generation=generation,
        step=step,
        rank=rank,
        world_size=world_size,
        tensors=packer.tensors,
        packs=tuple(packer.packs),
        frames=tuple(packer.frames),
        nonfinite=packer.nonfinite,
        digest=packer.digest.hex,
        base=base.ref if base is not None and packer.differences else None,
    )
    put_once(store, part_key(part.ref, rank), seal_packed(part))
    return part


def commit(
    store: ObjectStore,
    parts: Sequence[RankPart],
    meta: CheckpointMeta,
    *,
    parent: CheckpointRef | None,
    time_s: float,
    cancelled: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Publish a checkpoint. Safe to repeat: the same state is committed once, and a second call finds it done.

    Args:
        store: The run's store.
        parts: One of each rank, in any order.
        meta: What belongs to the state besides the tensors.
        parent: The checkpoint that this one follows on its line.
        time_s: Seconds since the epoch.
        cancelled: Asked before each request to the store; once it says yes, nothing is published any more.

    Raises:
        SaveAbandonedError: It was cancelled; what is there is no checkpoint.
        CheckpointError: Ranks are missing, disagree, or do not make a whole state; or a pack is not as it was written;
            or the keyframe that it builds on is not there any more.
        FencedError: Another state was committed under this generation and step.
        StorageError: The store failed; without a commit object there is no checkpoint.
    """
    manifest = merge(parts, meta, parent)

    def go_on() -> None:
        if cancelled():
            raise SaveAbandonedError("it was given up before it was published", where=commit_key(manifest.ref))

    _check_packs(store, manifest.packs, go_on)
    _check_base(store, manifest, go_on)
    go_on()
    manifest, body = _publish_manifest(store, manifest)
    record = Commit(
        generation=manifest.generation,
        step=manifest.step,
        parent=manifest.parent,
        applied=manifest.meta.applied,
        tokens=manifest.meta.tokens,
        world_size=manifest.meta.world_size,
        manifest_sha256=hashlib.sha256(body).hexdigest(),
        root=manifest.root,
        stored_bytes=manifest.stored_bytes,
        nonfinite=manifest.nonfinite,
        losses_finite=manifest.meta.losses_finite,
        time_s=time_s,
        base=manifest.base,
        eval_loss=manifest.meta.eval_loss,
        eval_set=manifest.meta.eval_set,
    )
    key = commit_key(record.ref)
    go_on()
    try:
        store.put(key, seal(record), if_none_match=True)
    except PreconditionFailedError as error:
        found = unseal(store.get(key), Commit, key)
        _same_state(key, found.root, record.root, error)
    return manifest


def _publish_manifest(store: ObjectStore, manifest: Manifest) -> tuple[Manifest, bytes]:
    """Put the manifest, or find that an earlier try of the same commit has put it."""
    key = manifest_key(manifest.ref)
    body = pack_manifest(manifest)
    try:
        store.put(key, body, if_none_match=True)
    except PreconditionFailedError as error:
        body = store.get(key)
        found = unpack_manifest(body, key)
        found.check_complete()
        _same_state(key, found.root, manifest.root, error)
        manifest = found
    return manifest, body


def _same_state(key: str, found: str, ours: str, error: PreconditionFailedError) -> None:
    if found != ours:
        raise FencedError(
            f"another state is there already: its digest is {found}, ours {ours}",
            where=key,
            todo="this process writes for a generation that is not its own any more, and must stop",
        ) from error


def _check_packs(store: ObjectStore, packs: Iterable[PackEntry], go_on: Callable[[], None]) -> None:
    """One HEAD per pack: what is not on the store as it was written is not committed."""
    packs = tuple(packs)
    for pack, info in zip(packs, heads(store, [pack.key for pack in packs], go_on), strict=True):
        if info is None or info.size_bytes != pack.size_bytes:
            found = "missing" if info is None else f"{info.size_bytes} bytes long"
            raise CheckpointError(
                f"the pack is {found}, expected {pack.size_bytes} bytes", where=pack.key, objects=(pack.key,)
            )


def _check_base(store: ObjectStore, manifest: Manifest, go_on: Callable[[], None]) -> None:
    """What cannot be read back is not committed: the keyframe must be there, and hold what the differences build on."""
    go_on()
    links = load_links(store, manifest)
    if links is not None:
        needed = {frame.pack for frame in links.parents(manifest.frames)}
        _check_packs(store, (links.base.packs[place] for place in sorted(needed)), go_on)
