"""Gradients of one step as bf16, in byte planes: exponents, and sign with mantissa; pure.

A bf16 value is turned left by one bit, so that its upper byte is the whole exponent and its lower byte mantissa and
sign. Nearly all that can be saved sits in the exponents, and in those of a matrix much is alike in rows and columns
(`scales.py`). The values are cut into blocks, none of them longer than 2^20 or of two parameters, each

    values u32 | columns u32 | first u32 | 3 x (method u8 | stored length u32) | the planes, back to back

little-endian: exponents, the rest, and the rows' and columns' sides, which only blocks with columns have. Methods are
those of the planes of checkpoints (`planes.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.planes import Method, load_plane, store_plane
from stormsail.platform.checkpoint.scales import Grid, restore, worth
from stormsail.platform.errors import CheckpointError, InternalError

Bits: TypeAlias = NDArray[np.uint16]
Cut: TypeAlias = tuple[int, Grid | None]

_COUNTS = struct.Struct("<III")
_PLANE = struct.Struct("<BI")
_PLANES = 3
_HEAD_BYTES = _COUNTS.size + _PLANES * _PLANE.size
_METHODS = {int(method): method for method in Method}
_ONE, _SEVEN, _FIFTEEN = np.uint16(1), np.uint16(7), np.uint16(15)


def encode_gradient(bits: Bits, cuts: Sequence[Cut] | None = None) -> list[bytes | memoryview]:
    """The blocks in pieces; nothing for no values. Any thread; the GIL is free for most of it.

    Args:
        bits: bf16 values, one-dimensional and contiguous.
        cuts: How many of them belong to each parameter, and how those lie in its rows; None: one without rows.

    Raises:
        InternalError: The cuts do not add up to the values.
    """
    if cuts is not None and sum(count for count, _ in cuts) != bits.size:
        raise InternalError(f"{bits.size} gradient values are to be cut into {sum(count for count, _ in cuts)}")
    pieces: list[bytes | memoryview] = []
    done = 0
    for count, grid in _short(((bits.size, None),) if cuts is None else cuts):
        pieces += _encode_block(bits[done : done + count], grid)
        done += count
    return pieces


def _short(cuts: Sequence[Cut]) -> Iterator[Cut]:
    """None longer than a block may be, and none empty."""
    for count, grid in cuts:
        for start in range(0, count, CHUNK_ELEMENTS):
            moved = None if grid is None else Grid(grid.columns, (grid.first + start) % grid.columns)
            yield min(CHUNK_ELEMENTS, count - start), moved


def _encode_block(block: Bits, grid: Grid | None) -> list[bytes | memoryview]:
    exponents = (block >> _SEVEN).astype(np.uint8)
    planes = [exponents, ((block << _ONE) | (block >> _FIFTEEN)).astype(np.uint8)]
    found = worth(exponents, grid) if grid is not None else None
    if found is not None:
        planes = [found[0], planes[1], found[1]]
    stored = [store_plane(plane) for plane in planes]
    table = [_PLANE.pack(method, len(body)) for method, body in stored]
    table += [_PLANE.pack(Method.RAW, 0)] * (_PLANES - len(table))
    columns, first = (grid.columns, grid.first) if grid is not None and found is not None else (0, 0)
    return [b"".join((_COUNTS.pack(block.size, columns, first), *table)), *(body for _, body in stored)]


def decode_gradient(data: bytes | memoryview, count: int) -> Bits:
    """The values again.

    Args:
        data: The blocks.
        count: How many values they must hold.

    Raises:
        CheckpointError: The blocks are not whole and consistent.
    """
    bits = np.concatenate([np.zeros(0, np.uint16), *_blocks(memoryview(data), count)])
    if bits.size != count:
        raise CheckpointError(f"{bits.size} gradient values were found, and {count} announced")
    return bits


def _blocks(data: memoryview, limit: int) -> Iterator[Bits]:
    offset = held = 0
    while offset < len(data):
        if offset + _HEAD_BYTES > len(data):
            raise CheckpointError("a block of gradients is cut off in its header")
        size, columns, first = _COUNTS.unpack_from(data, offset)
        held += size
        if not 1 <= size <= CHUNK_ELEMENTS or held > limit or not _is_grid(columns, first):
            raise CheckpointError(f"a block cannot hold {size} gradient values in rows of {columns}")
        grid = Grid(columns, first) if columns else None
        sizes = (size, size) if grid is None else (size, size, grid.sides(size))
        start, planes = offset + _HEAD_BYTES, []
        for number, plain in enumerate(sizes):
            method, length = _PLANE.unpack_from(data, offset + _COUNTS.size + number * _PLANE.size)
            planes.append(_load(data[start : start + length], method, length, plain))
            start += length
        exponents = planes[0] if grid is None else restore(planes[0], grid, planes[2])
        yield _joined(exponents, planes[1])
        offset = start


def _joined(exponents: NDArray[np.uint8], rest: NDArray[np.uint8]) -> Bits:
    wide, low = exponents.astype(np.uint16), rest.astype(np.uint16)
    bits: Bits = (wide << _SEVEN) | (low >> _ONE) | (low << _FIFTEEN)
    return bits


def _is_grid(columns: int, first: int) -> bool:
    return first < columns <= CHUNK_ELEMENTS if columns else not first


def _load(body: memoryview, method: int, length: int, plain: int) -> NDArray[np.uint8]:
    known = _METHODS.get(method)
    if known is None or len(body) != length or not 0 < length <= plain:
        raise CheckpointError("a plane of gradients contradicts its header, or is cut off")
    if known is Method.RAW and length != plain:
        raise CheckpointError(f"a raw plane of {length} bytes cannot hold {plain} gradient values")
    return load_plane(body, known, plain)
