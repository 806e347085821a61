"""Frames: 32-bit words as two byte planes of their upper halves and two of their lower, stored as `planes.py` sees fit.

A frame is a header (`frame_header.py`) and then its planes, back to back. Where the lower halves are noise, as nearly
always, they lie there as they are, as one plane of two bytes a word.

Codec 4 keeps the words themselves, the upper half turned left by one bit, so that the top plane is the exponent, and
the sign the next one's lowest bit. What rows and columns have in common is taken out of that plane where it helps
(`scales.py`); it is one more plane then, the last. Codec 3 keeps the words' exact difference (`delta.py`) to the same
elements of an older state; its parent is the state digest of those elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.delta import common_zeros, int_add, int_sub
from stormsail.platform.checkpoint.frame_header import (
    PARENT_BYTES,
    UPPER_PLANES,
    Codec,
    FrameHeader,
    is_grid,
    pack_header,
    read_header,
)
from stormsail.platform.checkpoint.planes import Halves, Method, Plane, Stored, are_noise, load_plane, store_plane
from stormsail.platform.checkpoint.scales import Grid, restore, worth
from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError, InternalError

_BLOCK_WORDS = 1 << 15
_ONE, _EIGHT, _FIFTEEN = np.uint16(1), np.uint16(8), np.uint16(15)
_SIXTEEN = np.uint32(16)


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """What a difference builds on.

    Attributes:
        words: The same elements in the older state.
        digest: The state digest of those elements, 16 bytes.
    """

    words: Words
    digest: bytes


def encode(words: Words, *, base: Base | None = None, grid: Grid | None = None) -> bytes:
    """A frame of 1 to 2^20 words; the same words give the same frame. Any thread; the GIL is free for most of it.

    Args:
        words: What to keep.
        base: Keep only the difference to this.
        grid: How the words lie in the rows of their tensor, if they do; tried where there is no base.

    Raises:
        InternalError: More or fewer words than a frame takes, or a base or grid that does not fit.
    """
    return b"".join(encode_pieces(words, base=base, grid=grid))


def encode_pieces(words: Words, *, base: Base | None = None, grid: Grid | None = None) -> list[bytes | memoryview]:
    """The frame in pieces, for callers that put them together themselves: raw planes are not copied once more.

    Raises:
        InternalError: More or fewer words than a frame takes, or a base or grid that does not fit.
    """
    if not 1 <= words.size <= CHUNK_ELEMENTS:
        raise InternalError(f"a frame takes 1 to {CHUNK_ELEMENTS} words, not {words.size}")
    if grid is not None and not is_grid(grid, words.size):
        raise InternalError(f"{words.size} words do not lie in such rows: {grid}")
    if base is None:
        return _plain_pieces(words, grid)
    if len(base.digest) != PARENT_BYTES:
        raise InternalError(f"a parent is a digest of {PARENT_BYTES} bytes, not {len(base.digest)}")
    if base.words.size != words.size:
        raise InternalError(f"{words.size} words cannot build on {base.words.size}")
    shift = common_zeros(words, base.words)
    cut = _Cut(words.size)
    for part in _blocks(words.size):
        cut.put(part, int_sub(words[part], base.words[part], shift), turned=False)
    halves, lower = _store_lower(cut.lower)
    stored = [*map(store_plane, cut.upper), *lower]
    header = pack_header(Codec.INT_SUB, words.size, _table(stored), halves=halves, parent=base.digest, shift=shift)
    return [header, *(plane for _, plane in stored)]


def _plain_pieces(words: Words, grid: Grid | None) -> list[bytes | memoryview]:
    cut = _Cut(words.size)
    for part in _blocks(words.size):
        cut.put(part, words[part], turned=True)
    halves, lower = _store_lower(cut.lower)
    exponents, rest = cut.upper
    found = worth(exponents, grid) if grid is not None else None
    if found is None:
        grid, stored = None, [store_plane(exponents), store_plane(rest), *lower]
    else:
        exponents, sides = found
        stored = [store_plane(exponents), store_plane(rest), *lower, store_plane(sides)]
    header = pack_header(Codec.PLAIN, words.size, _table(stored), halves=halves, grid=grid)
    return [header, *(plane for _, plane in stored)]


def _table(stored: list[Stored]) -> list[tuple[Method, int]]:
    return [(method, len(plane)) for method, plane in stored]


def _blocks(words: int) -> Iterator[slice]:
    """Pieces that stay in a core's own cache; beyond it, each pass over the words waits for memory."""
    for start in range(0, words, _BLOCK_WORDS):
        yield slice(start, min(words, start + _BLOCK_WORDS))


class _Cut:
    """Words on their way into planes."""

    def __init__(self, words: int) -> None:
        self.upper = np.empty((UPPER_PLANES, words), dtype=np.uint8)
        self.lower = np.empty(words, dtype="<u2")

    def put(self, part: slice, words: Words, *, turned: bool) -> None:
        self.lower[part] = words
        half = (words >> _SIXTEEN).astype(np.uint16)
        if turned:
            sign = half >> _FIFTEEN
            half <<= _ONE
            half |= sign
        self.upper[1, part] = half
        half >>= _EIGHT
        self.upper[0, part] = half


def _store_lower(lower: Halves) -> tuple[bool, list[Stored]]:
    """Whether the lower halves stay together in one plane, and that one or their two."""
    if are_noise(lower):
        return True, [(Method.RAW, lower.data.cast("B"))]
    return False, [store_plane((lower >> _EIGHT).astype(np.uint8)), store_plane(lower.astype(np.uint8))]


def decode(frame: bytes | memoryview, *, base: Base | None = None, out: Words | None = None) -> Words:
    """The words of a frame.

    Nothing is trusted: sizes are checked before memory is taken, some 12 MiB of it at most.

    Args:
        frame: The whole frame.
        base: What it builds on; None for a frame that needs no other one.
        out: Where to put them, and what is returned; None for new memory. After an error it may hold anything.

    Raises:
        CheckpointError: The frame is not whole and consistent, is a difference and no base is given, builds on
            another state than the one given, or has another number of words than `out`.
    """
    data = memoryview(frame)
    header = read_header(data)
    _check_base(header, base)
    if out is not None and out.size != header.words:
        raise CheckpointError(f"{header.words} elements, expected {out.size}")
    planes = _load_planes(header, data)
    words = np.empty(header.words, dtype=np.uint32) if out is None else out
    joined = _Joined(header, planes)
    for part in _blocks(header.words):
        joined.read(part, words[part])
        if base is not None:
            words[part] = int_add(words[part], base.words[part], header.shift)
    return words


class _Joined:
    """Planes on their way back into words; what is needed for a block is taken from the system once."""

    def __init__(self, header: FrameHeader, planes: list[Plane]) -> None:
        size = min(header.words, _BLOCK_WORDS)
        self._turned = header.codec is Codec.PLAIN
        self._upper, self._lower = planes[:UPPER_PLANES], planes[UPPER_PLANES:]
        self._half, self._spare = np.empty(size, np.uint16), np.empty(size, np.uint16)
        self._wide = np.empty(size, np.uint32)

    def read(self, part: slice, words: Words) -> None:
        """Put the words of a part where they belong."""
        size = words.size
        half, spare, wide = self._half[:size], self._spare[:size], self._wide[:size]
        _pair(self._upper, part, half, spare)
        if self._turned:
            np.left_shift(half, _FIFTEEN, out=spare)
            half >>= _ONE
            half |= spare
        words[:] = half
        words <<= _SIXTEEN
        if len(self._lower) == 1:  # copied, as the plane may begin at an odd address
            half.view(np.uint8)[:] = self._lower[0][2 * part.start : 2 * part.stop]
        else:
            _pair(self._lower, part, half, spare)
        wide[:] = half  # numpy would widen in small pieces by itself, at twice the price
        words |= wide


def _pair(planes: list[Plane], part: slice, half: Halves, spare: Halves) -> None:
    high, low = planes
    half[:] = high[part]
    half <<= _EIGHT
    spare[:] = low[part]
    half |= spare


def _check_base(header: FrameHeader, base: Base | None) -> None:
    if header.parent is None:
        if base is not None:
            raise CheckpointError("the frame is whole in itself, and not the difference that it should be")
    elif base is None:
        raise CheckpointError("the frame is a difference and cannot be read without its parent")
    elif header.parent != base.digest:
        raise CheckpointError(f"the frame builds on the state {header.parent.hex()}, not on {base.digest.hex()}")
    elif base.words.size != header.words:
        raise CheckpointError(f"the frame's {header.words} words build on {base.words.size}")


def _load_planes(header: FrameHeader, data: memoryview) -> list[Plane]:
    planes = []
    offset = header.payload
    for number, (method, length) in enumerate(header.planes):
        planes.append(load_plane(data[offset : offset + length], method, header.plane_bytes(number)))
        offset += length
    if header.grid is not None:
        planes[0] = restore(planes[0], header.grid, planes.pop())
    return planes
