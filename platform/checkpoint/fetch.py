"""Getting frames from the store: few large ranged reads, and nothing believed before it is checked.

A frame's XXH3 is checked before it is decoded, the digest of what was asked for after.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from stormsail.platform.checkpoint.codec import Base, decode
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.manifest import FrameEntry, Manifest
from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError, ObjectMissingError, StorageError
from stormsail.platform.storage.store import ObjectStore

# Neighbouring frames travel in one request up to this size; a gap that is cheaper to read than to ask again is read.
_REQUEST_BYTES = 16 << 20
_GAP_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Request:
    """One ranged read: frames of one pack, in order of their offsets."""

    pack: int
    start: int
    stop: int
    frames: tuple[FrameEntry, ...]


def plan_requests(frames: Iterable[FrameEntry]) -> list[Request]:
    """Merge neighbouring frames into ranged reads; pure."""
    requests: list[Request] = []
    group: list[FrameEntry] = []
    for frame in sorted(frames, key=lambda entry: (entry.pack, entry.offset)):
        if group and not _joins(group, frame):
            requests.append(_request(group))
            group = []
        group.append(frame)
    if group:
        requests.append(_request(group))
    return requests


def fetch_range(store: ObjectStore, manifest: Manifest, request: Request) -> memoryview:
    """The bytes of one ranged read.

    Raises:
        CheckpointError: The pack is missing, or shorter than the manifest says.
        StorageError: The store failed.
    """
    pack = manifest.packs[request.pack]
    try:
        data = store.get(pack.key, start=request.start, end=request.stop)
    except ObjectMissingError as error:
        raise CheckpointError("the pack is missing", where=pack.key, objects=(pack.key,)) from error
    except StorageError:
        # Some stores refuse a range that a truncated object does not have; others answer short.
        _check_size(store, manifest, request.pack)
        raise
    if len(data) != request.stop - request.start:
        _check_size(store, manifest, request.pack)
        raise CheckpointError(
            f"the store answered {len(data)} bytes for a range of {request.stop - request.start}",
            where=pack.key,
            objects=(pack.key,),
        )
    return memoryview(data)


def open_frame(
    manifest: Manifest,
    frame: FrameEntry,
    data: memoryview,
    *,
    base: Base | None = None,
    last: bool = True,
    out: Words | None = None,
) -> Words:
    """Check a frame's bytes, decode them, and check what came out.

    Args:
        manifest: Whose frame.
        frame: What is expected.
        data: The frame's bytes.
        base: What it builds on; None for a frame that is whole in itself.
        last: Whether what comes out is what was asked for. What only a difference builds on is not checked once more:
            its bytes were, and the digest of the sum tells of the rest.
        out: Where to decode to, as for `decode`.

    Raises:
        CheckpointError: The frame is not the one that was written.
    """
    key = manifest.packs[frame.pack].key
    name = manifest.tensors[frame.tensor].name
    where = f"{key} bytes {frame.offset} to {frame.offset + frame.length} ({name}/{frame.component})"
    found = xxhash.xxh3_128_hexdigest(data)
    if found != frame.xxh3:
        raise CheckpointError(f"damaged: XXH3 is {found}, expected {frame.xxh3}", where=where, objects=(key,))
    try:
        words = decode(data, base=base, out=out)
    except CheckpointError as error:
        raise CheckpointError(error.what, where=where, todo=error.todo, objects=(key,)) from error
    if words.size != frame.count:
        raise CheckpointError(f"{words.size} elements, expected {frame.count}", where=where, objects=(key,))
    digest = Digest.of_words(name, frame.component, frame.start, words).hex if last else frame.digest
    if digest != frame.digest:
        raise CheckpointError(f"state digest is {digest}, expected {frame.digest}", where=where, objects=(key,))
    return words


def _joins(group: list[FrameEntry], frame: FrameEntry) -> bool:
    first, last = group[0], group[-1]
    return (
        frame.pack == last.pack
        and frame.offset - (last.offset + last.length) <= _GAP_BYTES
        and frame.offset + frame.length - first.offset <= _REQUEST_BYTES
    )


def _request(group: list[FrameEntry]) -> Request:
    return Request(group[0].pack, group[0].offset, group[-1].offset + group[-1].length, tuple(group))


def _check_size(store: ObjectStore, manifest: Manifest, pack: int) -> None:
    entry = manifest.packs[pack]
    try:
        found = store.head(entry.key).size_bytes
    except ObjectMissingError as error:
        raise CheckpointError("the pack is missing", where=entry.key, objects=(entry.key,)) from error
    if found != entry.size_bytes:
        raise CheckpointError(
            f"the pack has {found} bytes, expected {entry.size_bytes}", where=entry.key, objects=(entry.key,)
        )
