"""What a snapshot in a slot consists of: raw words, and a record that says which, and how to know that they are right.

The record binds each piece twice: its checksum (XXH3, 128 bits) to the bytes in the slot, and its state digest to a
committed manifest. So a piece is the saved state if its checksum is right and its digest is the manifest's, which
needs no decoding and runs at memory speed. (pure)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import ConfigDict

from stormsail.platform.checkpoint.manifest import Component, DigestHex, Natural, Positive, RankPart
from stormsail.platform.checkpoint.records import RECORD_CONFIG, Record
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import InternalError
from stormsail.platform.messages import CheckpointRef

ALIGNMENT_BYTES = 64  # a cache line, and what every device's copies are happy with
WORD_BYTES = 4

Elements: TypeAlias = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class ImagePiece:
    """Some elements in a slot; at most one chunk of the grid, as a frame of the manifest.

    Attributes:
        tensor: Index into the record's names.
        component: Which component of it.
        start: First flat element.
        count: Elements.
        offset: First byte in the slot.
        digest: State digest of the elements.
        checksum: XXH3-128 of their bytes.
    """

    __pydantic_config__: ClassVar[ConfigDict] = RECORD_CONFIG

    tensor: Natural
    component: Component
    start: Natural
    count: Positive
    offset: Natural
    digest: DigestHex
    checksum: DigestHex

    @property
    def stop_byte(self) -> int:
        """One past its last byte in the slot."""
        return self.offset + self.count * WORD_BYTES


class ImageRecord(Record):
    """What one rank left of one checkpoint in a slot.

    Attributes:
        names: Tensors, in the order that pieces count them.
        pieces: All that the rank owns, in the order of their offsets.
    """

    format: Literal[1] = 1
    generation: Natural
    step: Natural
    rank: Natural
    names: tuple[str, ...]
    pieces: tuple[ImagePiece, ...]

    @property
    def ref(self) -> CheckpointRef:
        """The checkpoint that this is a part of."""
        return CheckpointRef(self.generation, self.step)

    @property
    def size_bytes(self) -> int:
        """Bytes of the slot that are in use."""
        return max((piece.stop_byte for piece in self.pieces), default=0)

    def elements(self, piece: ImagePiece) -> Elements:
        """What a piece holds, as manifests of the same state name it."""
        return self.names[piece.tensor], piece.component, piece.start, piece.count


def offsets(specs: Sequence[ShardSpec]) -> tuple[list[int], int]:
    """Where in a slot each shard begins, and how long the slot must be, in bytes."""
    found, end = [], 0
    for spec in specs:
        found.append(end)
        end += -(-spec.count * WORD_BYTES // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return found, end


def describe(part: RankPart, shards: Sequence[Shard], starts: Sequence[int]) -> ImageRecord:
    """The record of a slot whose shards have been written as `part`: the digests are those of the part's frames.

    Args:
        part: What the rank wrote to the store.
        shards: The very shards that it wrote, where they lie in the slot.
        starts: Offset of each in the slot.

    Raises:
        InternalError: The part is not of these shards.
    """
    homes = {
        (shard.spec.name, shard.spec.component): (shard, start) for shard, start in zip(shards, starts, strict=True)
    }
    names = tuple(tensor.name for tensor in part.tensors)
    pieces = []
    for frame in part.frames:
        found = homes.get((names[frame.tensor], frame.component))
        if found is None or not found[0].spec.start <= frame.start <= frame.stop <= found[0].spec.stop:
            raise InternalError(f"a frame of {names[frame.tensor]}/{frame.component} is of no shard of this snapshot")
        shard, start = found
        first = frame.start - shard.spec.start
        pieces.append(
            ImagePiece(
                tensor=frame.tensor,
                component=frame.component,
                start=frame.start,
                count=frame.count,
                offset=start + first * WORD_BYTES,
                digest=frame.digest,
                checksum=checksum(shard.words[first : first + frame.count].view(np.uint8)),
            )
        )
    pieces.sort(key=lambda piece: piece.offset)
    return ImageRecord(generation=part.generation, step=part.step, rank=part.rank, names=names, pieces=tuple(pieces))


def checksum(data: NDArray[np.uint8]) -> str:
    """XXH3-128 of some bytes, 32 hex digits: against accidents, at memory speed."""
    return xxhash.xxh3_128_hexdigest(data.data)
