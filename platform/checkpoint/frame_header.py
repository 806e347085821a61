"""What stands before a frame's planes: how to read them, and back to the words; pure.

    magic "SSFR" | version u8 | codec u8 | flags u8 | planes u8 | words u32
    parent 16 bytes                        if bit 0 of the flags is set
    columns u32 | first u32                if bit 6 of the flags is set
    planes x (method u8 | stored length u32)

little-endian throughout. Bits 1 to 5 of the flags count the zero bits that a difference leaves out; bit 7 says that the
lower halves of the words are one plane.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.planes import Method
from stormsail.platform.checkpoint.scales import Grid
from stormsail.platform.errors import CheckpointError

MAGIC = b"SSFR"
VERSION = 1
UPPER_PLANES = 2
PARENT_BYTES = 16


class Codec(IntEnum):
    """How the words of a frame come back. Numbers are for ever; new codecs take new ones."""

    PLAIN = 4  # 1 and 2 were the same in other planes and by other arithmetic, before the first release
    INT_SUB = 3


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


def pack_header(
    codec: Codec,
    words: int,
    table: Sequence[tuple[Method, int]],
    *,
    halves: bool,
    parent: bytes | None = None,
    shift: int = 0,
    grid: Grid | None = None,
) -> bytes:
    """The bytes of a header; arguments as the attributes of `FrameHeader`."""
    flags = shift << 1 | (_HAS_HALVES if halves else 0)
    extra = b""
    if parent is not None:
        flags, extra = flags | _HAS_PARENT, _PARENT.pack(parent)
    if grid is not None:
        flags, extra = flags | _HAS_GRID, _GRID.pack(grid.columns, grid.first)
    head = _HEAD.pack(MAGIC, VERSION, codec, flags, len(table), words)
    return b"".join((head, extra, *(_PLANE.pack(method, length) for method, length in table)))


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
    if not is_grid(grid, words):
        raise CheckpointError(f"{words} words do not lie in rows of {grid.columns}")
    return grid


def is_grid(grid: Grid, words: int) -> bool:
    """Whether so many words can lie in such rows."""
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
