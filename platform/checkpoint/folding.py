"""Folding: a checkpoint with differences written once more, whole in itself, for the same step and root.

Its differences and its keyframe may then go. Packs first, then the manifest, then the record that says so; until that
is there, what was written belongs to nothing, so a crash at any moment is harmless. What is written is read back before
it is published. Folding what was folded, or is being folded by somebody else, gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Never

from stormsail.platform.checkpoint.commits import load_commit, load_folded, load_original
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.fetch import plan_requests
from stormsail.platform.checkpoint.keys import FOLDS, MANIFESTS, fold_key, manifest_key, owner_of, part_key
from stormsail.platform.checkpoint.manifest import Commit, Fold, FrameEntry, Manifest, pack_manifest
from stormsail.platform.checkpoint.opening import load_links, open_request
from stormsail.platform.checkpoint.packer import Packer, SaveAbandonedError, put_once
from stormsail.platform.checkpoint.records import seal
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import PACK_BYTES
from stormsail.platform.errors import CheckpointError, ObjectMissingError, PreconditionFailedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore


def fold(
    store: ObjectStore,
    ref: CheckpointRef,
    *,
    time_s: float,
    cancelled: Callable[[], bool] = lambda: False,
    pack_bytes: int = PACK_BYTES,
) -> Manifest | None:
    """Write a checkpoint once more as a keyframe. Any process; holds some 50 MiB and about one pack in memory.

    Args:
        store: The run's store.
        ref: Which checkpoint.
        time_s: Seconds since the epoch.
        cancelled: Asked before each frame that is written and each request that is read back.
        pack_bytes: A pack is closed once it is at least this long.

    Returns:
        What readers use from now on; None for a checkpoint that is a keyframe already.

    Raises:
        CheckpointError: There is no such checkpoint, or it is damaged; or what was written does not read back.
        SaveAbandonedError: `cancelled` said so.
        StorageError: The store failed.
    """
    record = load_commit(store, ref)
    if record.base is None:
        return None
    found = load_folded(store, record)
    if found is not None:
        return found
    manifest = _write(store, load_original(store, record), cancelled, pack_bytes)
    _read_back(store, manifest, cancelled)
    _publish(store, manifest, time_s)
    return manifest


def folded(store: ObjectStore) -> frozenset[CheckpointRef]:
    """Which checkpoints were folded.

    Raises:
        StorageError: The store failed; never reported as "none".
    """
    return frozenset(ref for info in store.list(FOLDS) if (ref := owner_of(info.key)) is not None)


def freed(store: ObjectStore, folds: Collection[CheckpointRef]) -> frozenset[CheckpointRef]:
    """Which of the folded checkpoints need their keyframe no longer: those whose differences are gone.

    As long as they are there they may be what is read, because the fold turned out to be damaged.

    Args:
        store: The run's store.
        folds: From `folded`.

    Raises:
        StorageError: The store failed; never reported as "none".
    """
    return frozenset(folds) - {owner_of(info.key) for info in store.list(MANIFESTS)}


def drop_original(store: ObjectStore, record: Commit) -> int:
    """Delete the form with differences of a folded checkpoint. Safe to repeat after a crash.

    The manifest goes last but for the packs, which it names: what a crash leaves is found again by it.

    Returns:
        Bytes freed.

    Raises:
        CheckpointError: The fold is not there as it was written, so nothing was deleted.
        StorageError: The store failed.
    """
    kept = load_folded(store, record)
    if kept is None:
        return 0
    try:
        original = load_original(store, record)
    except CheckpointError:
        store.delete(manifest_key(record.ref))  # gone, or of no use; its packs are found by their keys
        return 0
    _check_there(store, kept)
    for rank in range(original.meta.world_size):
        store.delete(part_key(record.ref, rank))
    for pack in original.packs:
        store.delete(pack.key)
    store.delete(manifest_key(record.ref))
    return original.stored_bytes


def _write(store: ObjectStore, original: Manifest, cancelled: Callable[[], bool], pack_bytes: int) -> Manifest:
    packer = Packer(store, original.ref, None, pack_bytes, cancelled)
    links = load_links(store, original)
    for request in plan_requests(original.frames):
        for frame, words in open_request(store, original, links, request, _give_up):
            tensor = original.tensors[frame.tensor]
            spec = ShardSpec(tensor.name, frame.component, tensor.shape, frame.start, frame.count)
            packer.add(Shard(spec, words))
    packer.close()
    places = {tensor.name: index for index, tensor in enumerate(original.tensors)}
    names = [tensor.name for tensor in packer.tensors]
    frames = [replace(frame, tensor=places[names[frame.tensor]]) for frame in packer.frames]
    manifest = original.model_copy(
        update={"packs": tuple(packer.packs), "frames": _in_order(frames), "base": None, "folded": True}
    )
    manifest.check_complete()  # the digests of what was read, frame by frame, still add up to the root
    return manifest


def _in_order(frames: list[FrameEntry]) -> tuple[FrameEntry, ...]:
    return tuple(sorted(frames, key=lambda frame: (frame.tensor, frame.component, frame.start)))


def _read_back(store: ObjectStore, manifest: Manifest, cancelled: Callable[[], bool]) -> None:
    found = Digest()
    for request in plan_requests(manifest.frames):
        if cancelled():
            raise SaveAbandonedError("folding was given up", where=manifest.key)
        for frame, _ in open_request(store, manifest, None, request, _give_up):
            found += Digest.from_hex(frame.digest)  # which is what opening the frame has just recomputed
    if found != manifest.root_digest:
        raise CheckpointError(f"what was folded reads back as {found}, expected {manifest.root}", where=manifest.key)


def _check_there(store: ObjectStore, manifest: Manifest) -> None:
    for pack in manifest.packs:
        try:
            found = store.head(pack.key).size_bytes
        except ObjectMissingError as error:
            raise CheckpointError("a pack of the fold is missing", where=pack.key, objects=(pack.key,)) from error
        if found != pack.size_bytes:
            raise CheckpointError(
                f"a pack of the fold has {found} bytes, expected {pack.size_bytes}", where=pack.key, objects=(pack.key,)
            )


def _publish(store: ObjectStore, manifest: Manifest, time_s: float) -> None:
    body = pack_manifest(manifest)
    put_once(store, manifest.key, body)
    _check_there(store, manifest)  # what belongs to nothing yet may have been swept as litter meanwhile
    record = Fold(
        generation=manifest.generation,
        step=manifest.step,
        root=manifest.root,
        manifest_sha256=hashlib.sha256(body).hexdigest(),
        stored_bytes=manifest.stored_bytes,
        time_s=time_s,
    )
    try:
        store.put(fold_key(manifest.ref), seal(record), if_none_match=True)
    except PreconditionFailedError:
        load_folded(store, load_commit(store, manifest.ref))  # another process was faster; what it says must be right


def _give_up(error: CheckpointError) -> Never:
    raise error
