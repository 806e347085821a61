"""From requests to words: frames are fetched and checked, and where they are differences so is what they build on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from stormsail.platform.checkpoint.codec import Base
from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.fetch import Request, fetch_range, open_frame, plan_requests
from stormsail.platform.checkpoint.keys import manifest_key
from stormsail.platform.checkpoint.links import Links
from stormsail.platform.checkpoint.manifest import FrameEntry, Manifest
from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError
from stormsail.platform.storage.store import ObjectStore

Failed: TypeAlias = Callable[[CheckpointError], None]
_Place: TypeAlias = tuple[int, int]


def load_links(store: ObjectStore, manifest: Manifest) -> Links | None:
    """The way to the checkpoint's keyframe, or None for one that is whole in itself.

    Raises:
        CheckpointError: The keyframe is missing, damaged, or itself a difference; names both.
        StorageError: The store failed.
    """
    if manifest.base is None:
        return None
    try:
        return Links(manifest, load_manifest(store, manifest.base))
    except CheckpointError as error:
        raise _through(manifest, error) from error


def open_request(
    store: ObjectStore,
    manifest: Manifest,
    links: Links | None,
    request: Request,
    failed: Failed,
    *,
    last: bool = True,
    into: Callable[[FrameEntry], Words | None] = lambda _frame: None,
) -> Iterator[tuple[FrameEntry, Words]]:
    """The frames of one ranged read, each checked before and after decoding.

    Memory: the request, and the requests for what its frames build on, which are no larger.

    Args:
        store: The run's store.
        manifest: Whose frames.
        links: From `load_links`.
        request: What to read.
        failed: Told of each frame, or range, that cannot be used; the others still come.
        last: As for `open_frame`.
        into: Says where to decode a frame to; None for new memory.

    Raises:
        StorageError: The store failed.
    """
    try:
        data = fetch_range(store, manifest, request)
    except CheckpointError as error:
        failed(error)
        return
    bases = {} if links is None else _fetch_bases(store, links, request.frames, failed)
    for frame in request.frames:
        if frame.base is not None and frame.place not in bases:
            continue  # told already
        try:
            stored = data[frame.offset - request.start :][: frame.length]
            base = bases.pop(frame.place, None)
            words = open_frame(manifest, frame, stored, base=base, last=last, out=into(frame))
        except CheckpointError as error:
            failed(error)
            continue
        yield frame, words


def _fetch_bases(store: ObjectStore, links: Links, frames: Iterable[FrameEntry], failed: Failed) -> dict[_Place, Base]:
    """What the differences among these frames build on, by the place of the difference."""
    children: dict[_Place, FrameEntry] = {}
    parents: list[FrameEntry] = []
    for frame in frames:
        if frame.base is None:
            continue
        try:
            parent = links.parent(frame)
        except CheckpointError as error:
            failed(error)
            continue
        parents.append(parent)
        children[parent.place] = frame

    def told(error: CheckpointError) -> None:
        failed(_through(links.manifest, error))

    found: dict[_Place, Base] = {}
    for request in plan_requests(parents):
        for parent, words in open_request(store, links.base, None, request, told, last=False):
            found[children[parent.place].place] = Base(words, bytes.fromhex(parent.digest))
    return found


def _through(manifest: Manifest, error: CheckpointError) -> CheckpointError:
    """The error of a keyframe as that of the checkpoint that builds on it."""
    base = manifest.base
    if base is None or (error.objects == (manifest_key(manifest.ref),)):
        return error
    wrapped = CheckpointError(
        f"step {manifest.step} builds on step {base.step} of generation {base.generation}, "
        f"which cannot be used: {error.what}",
        where=error.where,
        todo=error.todo,
        objects=error.objects,
    )
    wrapped.__cause__ = error.__cause__
    return wrapped
