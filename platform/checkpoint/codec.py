"""Frames: 32-bit words as two byte planes of their upper halves and two of their lower, stored as `planes.py` sees fit.

A frame is

    magic "SSFR" | version u8 | codec u8 | flags u8 | planes u8 | words u32
    parent 16 bytes                        if bit 0 of the flags is set
    columns u32 | first u32                if bit 6 of the flags is set
    planes x (method u8 | stored length u32)
    the planes, back to back

little-endian throughout. Where the lower halves are noise, as nearly always, they lie there as they are, as one plane
of two bytes a word; bit 7 of the flags says so.

Codec 4 keeps the words themselves, the upper half turned left by one bit, so that the top plane is the exponent, and
the sign the next one's lowest bit. Bit 6 says that what rows and columns have in common was taken out of that plane
(`scales.py`); it is one more plane then, the last. Codec 3 keeps the words' exact difference (`delta.py`) to the same
elements of an older state: bit 0 is set, bits 1 to 5 count the zero bits that the difference leaves out, and `parent` is
the state digest of those elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.delta import common_zeros, int_add, int_sub
from stormsail.platform.checkpoint.planes import Halves, Method, Plane, Stored, are_noise, load_plane, store_plane
from stormsail.platform.checkpoint.scales import Grid, restore, worth
from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError, InternalError

MAGIC = b"SSFR"
VERSION = 1
UPPER_PLANES = 2
PARENT_BYTES = 16


class Codec(IntEnum):
    """How the words of a frame come back. Numbers are for ever; new codecs take new ones."""

    PLAIN = 4  # 1 and 2 were the same in other planes and by other arithmetic, before the first release
    INT_SUB = 3


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
        halves: Whether the lower halves are one raw plane.
        planes: (method, stored length in bytes) of each plane, top byte first, the grid's sides last.
        payload: Where the first plane begins.
    """

    codec: Codec
    parent: bytes | None
    shift: int
    grid: Grid | None
    words: int
    halves: bool
    planes: tuple[tuple[Method, int], ...]
    payload: int

    def plane_bytes(self, number: int) -> int:
        """How many bytes a plane has once it is decoded."""
        if self.grid is not None and number == len(self.planes) - 1:
            return self.grid.sides(self.words)
        return 2 * self.words if self.halves and number == UPPER_PLANES else self.words


_HEAD = struct.Struct("<4sBBBBI")
_PARENT = struct.Struct(f"<{PARENT_BYTES}s")
_GRID = struct.Struct("<II")
_PLANE = struct.Struct("<BI")
_HAS_PARENT = 1
_HAS_GRID = 1 << 6
_HAS_HALVES = 1 << 7
_MAX_SHIFT = 31
_CODECS = frozenset(map(int, Codec))
_METHODS = frozenset(map(int, Method))
_BLOCK_WORDS = 1 << 15
_ONE, _EIGHT, _FIFTEEN = np.uint16(1), np.uint16(8), np.uint16(15)
_SIXTEEN = np.uint32(16)


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
    cut = _Cut(words.size)
    for part in _blocks(words.size):
        cut.put(part, int_sub(words[part], base.words[part], shift), turned=False)
    flags, lower = _store_lower(cut.lower)
    flags |= _HAS_PARENT | shift << 1
    stored = [*map(store_plane, cut.upper), *lower]
    return _put_together(Codec.INT_SUB, flags, words.size, _PARENT.pack(base.digest), stored)


def _plain_pieces(words: Words, grid: Grid | None) -> list[bytes | memoryview]:
    cut = _Cut(words.size)
    for part in _blocks(words.size):
        cut.put(part, words[part], turned=True)
    flags, lower = _store_lower(cut.lower)
    exponents, rest = cut.upper
    found = worth(exponents, grid) if grid is not None else None
    if grid is None or found is None:
        stored = [store_plane(exponents), store_plane(rest), *lower]
        return _put_together(Codec.PLAIN, flags, words.size, b"", stored)
    exponents, sides = found
    stored = [store_plane(exponents), store_plane(rest), *lower, store_plane(sides)]
    return _put_together(Codec.PLAIN, flags | _HAS_GRID, words.size, _GRID.pack(grid.columns, grid.first), stored)


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


def _store_lower(lower: Halves) -> tuple[int, list[Stored]]:
    """The lower halves in one plane or two, and the flag for it."""
    if are_noise(lower):
        return _HAS_HALVES, [(Method.RAW, lower.data.cast("B"))]
    return 0, [store_plane((lower >> _EIGHT).astype(np.uint8)), store_plane(lower.astype(np.uint8))]


def _put_together(codec: Codec, flags: int, words: int, extra: bytes, stored: list[Stored]) -> list[bytes | memoryview]:
    head = _HEAD.pack(MAGIC, VERSION, codec, flags, len(stored), words)
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
    expected = (UPPER_PLANES + 1 if flags & _HAS_HALVES else UPPER_PLANES + 2) + bool(flags & _HAS_GRID)
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
    halves = bool(flags & _HAS_HALVES)
    header = FrameHeader(Codec(codec), parent, shift, grid, words, halves, _checked(table), payload)
    _check_planes(header, len(frame))
    return header


def _fits(codec: int, flags: int) -> bool:
    flags &= ~_HAS_HALVES
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
        raw = method is Method.RAW
        if (raw and length != plain) or not 0 < length <= plain or (plain == 2 * header.words and not raw):
            raise CheckpointError(f"plane {number} has {length} bytes for {plain}")
    if header.payload + sum(length for _, length in header.planes) != size:
        raise CheckpointError(f"the frame's planes do not add up to its {size} bytes")
