"""Frames: 32-bit words as four byte planes, each stored as `planes.py` sees fit.

A frame is

    magic "SSFR" | version u8 | codec u8 | flags u8 | planes u8 | words u32
    parent 16 bytes                        if bit 0 of the flags is set
    columns u32 | first u32                if bit 6 of the flags is set
    planes x (method u8 | stored length u32)
    the planes, back to back

little-endian throughout.

Codec 1 keeps the words themselves, turned left by one bit, so that the top plane is the exponent, and the sign the
lowest bit. Bit 6 says that what rows and columns have in common was taken out of that plane (`scales.py`); it is a
fifth plane then. Codec 3 keeps the words' exact difference (`delta.py`) to the same elements of an older state: bit 0
is set, bits 1 to 5 count the zero bits that the difference leaves out, and `parent` is the state digest of those
elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.delta import common_zeros, int_add, int_sub
from stormsail.platform.checkpoint.planes import Method, load_plane, store_plane
from stormsail.platform.checkpoint.scales import Grid, restore, worth
from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError, InternalError

MAGIC = b"SSFR"
VERSION = 1
PLANES = 4
PARENT_BYTES = 16


class Codec(IntEnum):
    """How the words of a frame come back. Numbers are for ever; new codecs take new ones."""

    PLAIN = 1
    INT_SUB = 3  # 2 was the same with other arithmetic, before the first release


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """What a difference builds on.

    Attributes:
        words: The same elements in the older state.
        digest: The state digest of those elements, 16 bytes.
    """

    words: Words
    digest: bytes


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What stands before the planes.

    Attributes:
        codec: How to get from the planes' words to the state.
        parent: Digest (16 bytes) of the words that this is a difference to, or None.
        shift: Trailing zero bits that the difference leaves out.
        grid: How the words lie in rows, if that was taken out of the top plane.
        words: How many 32-bit words, 1 to 2^20.
        planes: (method, stored length in bytes) of each plane, top byte first, the grid's sides last.
        payload: Where the first plane begins.
    """

    codec: Codec
    parent: bytes | None
    shift: int
    grid: Grid | None
    words: int
    planes: tuple[tuple[Method, int], ...]
    payload: int

    def plane_bytes(self, number: int) -> int:
        """How many bytes a plane has once it is decoded."""
        return self.words if number < PLANES or self.grid is None else self.grid.sides(self.words)


_HEAD = struct.Struct("<4sBBBBI")
_PARENT = struct.Struct(f"<{PARENT_BYTES}s")
_GRID = struct.Struct("<II")
_PLANE = struct.Struct("<BI")
_HAS_PARENT = 1
_HAS_GRID = 1 << 6
_MAX_SHIFT = 31
_ONE = np.uint32(1)
_CODECS = frozenset(map(int, Codec))
_METHODS = frozenset(map(int, Method))
_BLOCK_WORDS = 1 << 15
_BACK = np.uint32(31)


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
    if grid is not None and not _is_grid(grid, words.size):
        raise InternalError(f"{words.size} words do not lie in such rows: {grid}")
    if base is None:
        return _plain_pieces(words, grid)
    if len(base.digest) != PARENT_BYTES:
        raise InternalError(f"a parent is a digest of {PARENT_BYTES} bytes, not {len(base.digest)}")
    if base.words.size != words.size:
        raise InternalError(f"{words.size} words cannot build on {base.words.size}")
    shift = common_zeros(words, base.words)
    planes = np.empty((PLANES, words.size), dtype=np.uint8)
    for part in _blocks(words.size):
        _split(int_sub(words[part], base.words[part], shift), planes[:, part])
    return _pieces(Codec.INT_SUB, _HAS_PARENT | shift << 1, words.size, _PARENT.pack(base.digest), list(planes))


def _plain_pieces(words: Words, grid: Grid | None) -> list[bytes | memoryview]:
    planes = np.empty((PLANES, words.size), dtype=np.uint8)
    for part in _blocks(words.size):
        turned = words[part] << _ONE
        turned |= words[part] >> _BACK
        _split(turned, planes[:, part])
    found = worth(planes[0], grid) if grid is not None else None
    if grid is None or found is None:
        return _pieces(Codec.PLAIN, 0, words.size, b"", list(planes))
    exponents, sides = found
    stored = [exponents, *planes[1:], sides]
    return _pieces(Codec.PLAIN, _HAS_GRID, words.size, _GRID.pack(grid.columns, grid.first), stored)


def _blocks(words: int) -> Iterator[slice]:
    """Pieces that stay in a core's own cache; beyond it, each pass over the words waits for memory."""
    for start in range(0, words, _BLOCK_WORDS):
        yield slice(start, min(words, start + _BLOCK_WORDS))


def _split(words: Words, planes: NDArray[np.uint8]) -> None:
    upper = (words >> np.uint32(16)).astype(np.uint16)
    lower = words.astype(np.uint16)
    for half, (high, low) in ((upper, planes[:2]), (lower, planes[2:])):
        high[:] = half >> np.uint16(8)
        low[:] = half


def _join(planes: list[NDArray[np.uint8]], part: slice) -> Words:
    words = planes[0][part].astype(np.uint32)
    wide = np.empty_like(words)  # numpy would widen the bytes in small pieces by itself, at twice the price
    for plane in planes[1:]:
        words <<= np.uint32(8)
        wide[:] = plane[part]
        words |= wide
    return words


def _pieces(
    codec: Codec, flags: int, words: int, extra: bytes, planes: list[NDArray[np.uint8]]
) -> list[bytes | memoryview]:
    stored = [store_plane(plane) for plane in planes]
    head = _HEAD.pack(MAGIC, VERSION, codec, flags, len(planes), words)
    table = b"".join(_PLANE.pack(method, len(body)) for method, body in stored)
    return [head, extra, table, *(body for _, body in stored)]


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
    for part in _blocks(header.words):
        block = _join(planes, part)
        if base is not None:
            words[part] = int_add(block, base.words[part], header.shift)
        else:
            np.left_shift(block, _BACK, out=words[part])
            block >>= _ONE
            words[part] |= block
    return words


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


def _load_planes(header: FrameHeader, data: memoryview) -> list[NDArray[np.uint8]]:
    planes = []
    offset = header.payload
    for number, (method, length) in enumerate(header.planes):
        planes.append(load_plane(data[offset : offset + length], method, header.plane_bytes(number)))
        offset += length
    if header.grid is not None:
        planes[0] = restore(planes[0], header.grid, planes.pop())
    return planes


def read_header(frame: bytes | memoryview) -> FrameHeader:
    """The header of a whole frame, checked against the frame's length.

    Raises:
        CheckpointError: The header is not one of ours, or does not fit the frame.
    """
    if len(frame) < _HEAD.size:
        raise CheckpointError(f"a frame of {len(frame)} bytes is cut off in its header")
    magic, version, codec, flags, planes, words = _HEAD.unpack_from(frame)
    if magic != MAGIC:
        raise CheckpointError("this is not a frame: wrong magic number")
    if version != VERSION or codec not in _CODECS:
        raise CheckpointError(
            f"frame version {version}, codec {codec} is not known here",
            todo="use the Stormsail version that wrote it, or a newer one",
        )
    expected = PLANES + bool(flags & _HAS_GRID)
    if not 1 <= words <= CHUNK_ELEMENTS or planes != expected or not _fits(codec, flags):
        raise CheckpointError("the frame's header contradicts itself")
    extra = (_PARENT.size if flags & _HAS_PARENT else 0) + (_GRID.size if flags & _HAS_GRID else 0)
    payload = _HEAD.size + extra + planes * _PLANE.size
    if len(frame) < payload:
        raise CheckpointError(f"a frame of {len(frame)} bytes is cut off in its header")
    parent = _PARENT.unpack_from(frame, _HEAD.size)[0] if flags & _HAS_PARENT else None
    grid = _read_grid(frame, words) if flags & _HAS_GRID else None
    table = tuple(_PLANE.unpack_from(frame, payload - (planes - number) * _PLANE.size) for number in range(planes))
    shift = flags >> 1 & _MAX_SHIFT
    header = FrameHeader(Codec(codec), parent, shift, grid, words, _checked(table), payload)
    _check_planes(header, len(frame))
    return header


def _fits(codec: int, flags: int) -> bool:
    if codec == Codec.PLAIN:
        return flags in (0, _HAS_GRID)
    return bool(flags & _HAS_PARENT) and flags >> 1 <= _MAX_SHIFT


def _read_grid(frame: bytes | memoryview, words: int) -> Grid:
    grid = Grid(*_GRID.unpack_from(frame, _HEAD.size))
    if not _is_grid(grid, words):
        raise CheckpointError(f"{words} words do not lie in rows of {grid.columns}")
    return grid


def _is_grid(grid: Grid, words: int) -> bool:
    return 0 <= grid.first < grid.columns <= CHUNK_ELEMENTS and words > 0


def _checked(table: tuple[tuple[int, int], ...]) -> tuple[tuple[Method, int], ...]:
    for number, (method, _) in enumerate(table):
        if method not in _METHODS:
            raise CheckpointError(f"plane {number} has the unknown method {method}")
    return tuple((Method(method), length) for method, length in table)


def _check_planes(header: FrameHeader, size: int) -> None:
    for number, (method, length) in enumerate(header.planes):
        plain = header.plane_bytes(number)
        if (method is Method.RAW and length != plain) or not 0 < length <= plain:
            raise CheckpointError(f"plane {number} has {length} bytes for {plain}")
    if header.payload + sum(length for _, length in header.planes) != size:
        raise CheckpointError(f"the frame's planes do not add up to its {size} bytes")
