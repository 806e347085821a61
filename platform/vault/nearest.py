"""Reading a committed state from wherever it is nearest; what no image has comes from the store, in the same pass.

The manifest decides: a piece of an image counts only if its state digest is the manifest's for the same elements, and
its bytes are checked before they are used. One piece that is not what it should be puts its whole image aside.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from stormsail.platform.checkpoint.manifest import FrameEntry, Manifest
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.shards import Shard, ShardSpec, Words
from stormsail.platform.errors import CheckpointError, StormsailError
from stormsail.platform.storage.store import ObjectStore
from stormsail.platform.vault.image import WORD_BYTES, Elements, ImagePiece
from stormsail.platform.vault.images import Image
from stormsail.platform.vault.places import STORE

# Told (image, why) of each image that was put aside, or could not be fetched.
Trouble = Callable[[Image, StormsailError], None]


@dataclass(frozen=True, slots=True)
class Nearest:
    """What was read.

    Attributes:
        shards: In the order asked for. They may lie in an image: copy them before it is closed, and do not change them.
        bytes_from: Bytes taken from each place.
    """

    shards: list[Shard]
    bytes_from: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Home:
    image: Image
    piece: ImagePiece


def read_nearest(
    store: ObjectStore,
    manifest: Manifest,
    wanted: Sequence[ShardSpec],
    images: Iterable[Image],
    trouble: Trouble,
) -> Nearest:
    """The wanted elements as float32, each from the nearest place that has them whole.

    Args:
        store: The run's store.
        manifest: A checked manifest, from `load_manifest`.
        wanted: Which elements.
        images: Of this checkpoint, nearest first; asked for one by one until nothing is missing.
        trouble: Told of images that could not be used.

    Raises:
        CheckpointError: The checkpoint does not have what is wanted, or what no image has is damaged in the store too.
        StorageError: The store failed.
    """
    frames = _Frames(manifest)
    missing: dict[Elements, FrameEntry] = {}
    if all(frames.has(spec) for spec in wanted):  # otherwise the store's reader says what is wrong
        missing = {frames.elements(frame): frame for spec in wanted for frame in frames.of(spec)}
    homes: dict[Elements, _Home] = {}
    for image in images if missing else ():
        for elements, piece in _take(image, missing, trouble):
            homes[elements] = _Home(image, piece)
            del missing[elements]
        if not missing:
            break
    counted: dict[str, int] = defaultdict(int)
    if not homes:
        shards = read_shards(store, manifest, wanted)
        counted[STORE] = sum(shard.values.nbytes for shard in shards)
        return Nearest(shards, {place: count for place, count in counted.items() if count})
    for home in homes.values():
        counted[home.image.place] += home.piece.count * WORD_BYTES
    rest = _Rest(store, manifest, frames, wanted, missing)
    counted[STORE] += rest.size_bytes
    shards = [Shard(spec, _assemble(spec, frames, homes, rest).view(np.float32)) for spec in wanted]
    return Nearest(shards, {place: count for place, count in counted.items() if count})


class _Frames:
    """A manifest's frames by the elements that they hold."""

    def __init__(self, manifest: Manifest) -> None:
        self._names = [tensor.name for tensor in manifest.tensors]
        self._tensors = {tensor.name: tensor for tensor in manifest.tensors}
        self._held: dict[tuple[str, str], list[FrameEntry]] = defaultdict(list)
        for frame in sorted(manifest.frames, key=lambda entry: entry.start):
            self._held[self._names[frame.tensor], frame.component].append(frame)

    def elements(self, frame: FrameEntry) -> Elements:
        return self._names[frame.tensor], frame.component, frame.start, frame.count

    def has(self, spec: ShardSpec) -> bool:
        """Whether the checkpoint has such a tensor."""
        tensor = self._tensors.get(spec.name)
        return tensor is not None and tensor.shape == spec.shape and spec.component in tensor.components

    def of(self, spec: ShardSpec) -> Iterator[FrameEntry]:
        """Those that overlap, in order."""
        held = self._held.get((spec.name, spec.component), [])
        first = bisect_right(held, spec.start, key=lambda frame: frame.start) - 1
        for frame in held[max(first, 0) :]:
            if frame.start >= spec.stop:
                return
            yield frame


def _take(image: Image, missing: dict[Elements, FrameEntry], trouble: Trouble) -> list[tuple[Elements, ImagePiece]]:
    """What an image has of the missing pieces, checked; what it had before it turned out to be damaged counts too."""
    hits = [
        (elements, piece)
        for elements, frame in missing.items()
        if (piece := image.find(elements)) is not None and piece.digest == frame.digest
    ]
    found: list[tuple[Elements, ImagePiece]] = []
    try:
        image.load([piece for _, piece in hits])
        for elements, piece in hits:
            image.check(piece)
            found.append((elements, piece))
    except CheckpointError as error:
        image.discard()
        trouble(image, error)
    except StormsailError as error:
        trouble(image, error)
    return found


class _Rest:
    """What no image has: from the store, only the parts that are wanted."""

    def __init__(
        self,
        store: ObjectStore,
        manifest: Manifest,
        frames: _Frames,
        wanted: Sequence[ShardSpec],
        missing: dict[Elements, FrameEntry],
    ) -> None:
        specs = [
            _overlap(spec, frame) for spec in wanted for frame in frames.of(spec) if frames.elements(frame) in missing
        ]
        self._shards = {shard.spec: shard for shard in read_shards(store, manifest, specs)} if specs else {}

    @property
    def size_bytes(self) -> int:
        return sum(shard.values.nbytes for shard in self._shards.values())

    def words(self, spec: ShardSpec) -> Words:
        return self._shards[spec].words


def _assemble(spec: ShardSpec, frames: _Frames, homes: dict[Elements, _Home], rest: _Rest) -> Words:
    overlapping = list(frames.of(spec))
    found = [homes.get(frames.elements(frame)) for frame in overlapping]
    straight = _in_one_place(spec, found)
    if straight is not None:
        return straight
    words = np.empty(spec.count, dtype=np.uint32)
    for frame, home in zip(overlapping, found, strict=True):
        part = _overlap(spec, frame)
        target = words[part.start - spec.start : part.stop - spec.start]
        if home is None:
            target[:] = rest.words(part)
        else:
            offset = home.piece.offset + (part.start - frame.start) * WORD_BYTES
            target[:] = home.image.words(offset, part.count)
    return words


def _in_one_place(spec: ShardSpec, found: Sequence[_Home | None]) -> Words | None:
    """The elements where they lie, if they lie side by side in one image: nothing is copied then."""
    homes = [home for home in found if home is not None]
    if not homes or len(homes) != len(found):
        return None
    if any(
        right.image is not left.image or right.piece.offset != left.piece.stop_byte for left, right in pairwise(homes)
    ):
        return None
    offset = homes[0].piece.offset + (spec.start - homes[0].piece.start) * WORD_BYTES
    return homes[0].image.words(offset, spec.count)


def _overlap(spec: ShardSpec, frame: FrameEntry) -> ShardSpec:
    start, stop = max(frame.start, spec.start), min(frame.stop, spec.stop)
    return replace(spec, start=start, count=stop - start)
