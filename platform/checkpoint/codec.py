"""Frames: 32-bit words as four byte planes, each stored raw, by zstd, or by zstd's Huffman literals alone.

In float state nearly all that can be saved sits in the top byte (sign and exponent); the low bytes are noise that no
level of any compressor shrinks. So each plane gets the cheapest method that a sample of it deserves. A frame is

    magic "SSFR" | version u8 | codec u8 | flags u8 | planes u8 | words u32 | parent 16 bytes
    4 x (method u8 | stored length u32)          top plane first
    the planes, back to back

little-endian throughout. Codec 1 keeps the words as they are. Codec 2 keeps their exact difference (`delta.py`) to the
same elements of an older state; bit 0 of the flags is set, bits 1 to 5 count the zero bits that the difference leaves
out, and `parent` is the state digest of those elements. Flags and parent are zero otherwise.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import zstandard
from numpy.typing import NDArray

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.delta import int_add, int_sub
from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError, InternalError

MAGIC = b"SSFR"
VERSION = 1
PLANES = 4
PARENT_BYTES = 16


class Codec(IntEnum):
    """How the words of a frame come back. Numbers are for ever; new codecs take new ones."""

    PLAIN = 1
    INT_SUB = 2


class Method(IntEnum):
    """How one byte plane is stored."""

    RAW = 0
    ZSTD = 1
    LITERALS = 2


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
        words: How many 32-bit words, 1 to 2^20.
        planes: (method, stored length in bytes) of each plane, top byte first.
    """

    codec: Codec
    parent: bytes | None
    shift: int
    words: int
    planes: tuple[tuple[Method, int], ...]


_HEAD = struct.Struct("<4sBBBBI16s")
_PLANE = struct.Struct("<BI")
_PAYLOAD = _HEAD.size + PLANES * _PLANE.size
_HAS_PARENT = 1
_MAX_SHIFT = 31

# A plane with more order-0 entropy than this is noise; coding it costs time and gains under 3 %.
_NOISE_BITS = 7.8
_SAMPLE_PIECES = 8
_SAMPLE_MIN_BYTES = 4096  # of fewer random bytes the entropy would come out too low
_SAMPLE_MAX_BYTES = 32768
_SAMPLE_SHARE = 16

_LEVEL_1 = zstandard.ZstdCompressionParameters.from_level(1, write_checksum=0)
# A table of 2^7 entries finds next to no match, which leaves Huffman-coded literals in a standard frame, at memory
# speed. `target_length` stays 0: any other value of the fast strategy turns literal compression off.
_LITERALS_ONLY = zstandard.ZstdCompressionParameters.from_level(
    1, strategy=zstandard.STRATEGY_FAST, hash_log=7, min_match=7, target_length=0, write_checksum=0
)
_PARAMETERS = {Method.ZSTD: _LEVEL_1, Method.LITERALS: _LITERALS_ONLY}


def encode(words: Words, *, base: Base | None = None) -> bytes:
    """A frame of 1 to 2^20 words; the same words give the same frame. Any thread; the GIL is free for most of it.

    Args:
        words: What to keep.
        base: Keep only the difference to this.

    Raises:
        InternalError: More or fewer words than a frame takes, or a base that does not fit.
    """
    return b"".join(encode_pieces(words, base=base))


def encode_pieces(words: Words, *, base: Base | None = None) -> list[bytes | memoryview]:
    """The frame in pieces, for callers that put them together themselves: raw planes are not copied once more.

    Raises:
        InternalError: More or fewer words than a frame takes, or a base that does not fit.
    """
    if not 1 <= words.size <= CHUNK_ELEMENTS:
        raise InternalError(f"a frame takes 1 to {CHUNK_ELEMENTS} words, not {words.size}")
    if base is None:
        return _pieces(words, Codec.PLAIN, 0, bytes(PARENT_BYTES))
    if len(base.digest) != PARENT_BYTES:
        raise InternalError(f"a parent is a digest of {PARENT_BYTES} bytes, not {len(base.digest)}")
    difference, shift = int_sub(words, base.words)
    return _pieces(difference, Codec.INT_SUB, _HAS_PARENT | shift << 1, base.digest)


def _pieces(words: Words, codec: Codec, flags: int, parent: bytes) -> list[bytes | memoryview]:
    planes = np.ascontiguousarray(words.view(np.uint8).reshape(-1, PLANES).T)[::-1]
    stored = [_store_plane(plane) for plane in planes]
    head = _HEAD.pack(MAGIC, VERSION, codec, flags, PLANES, words.size, parent)
    table = b"".join(_PLANE.pack(method, len(body)) for method, body in stored)
    return [head, table, *(body for _, body in stored)]


def decode(frame: bytes | memoryview, *, base: Base | None = None) -> Words:
    """The words of a frame.

    Args:
        frame: The whole frame.
        base: What it builds on; None for a frame that needs no other one.

    Raises:
        CheckpointError: The frame is not whole and consistent, is a difference and no base is given, or builds on
            another state than the one given.
    """
    header, words = unpack(frame)
    if header.parent is None:
        if base is not None:
            raise CheckpointError("the frame is whole in itself, and not the difference that it should be")
        return words
    if base is None:
        raise CheckpointError("the frame is a difference and cannot be read without its parent")
    if header.parent != base.digest:
        raise CheckpointError(f"the frame builds on the state {header.parent.hex()}, not on {base.digest.hex()}")
    if base.words.size != words.size:
        raise CheckpointError(f"the frame's {words.size} words build on {base.words.size}")
    return int_add(words, base.words, header.shift)


def unpack(frame: bytes | memoryview) -> tuple[FrameHeader, Words]:
    """The header and the words as they were encoded, which for a difference is before the base is added.

    Nothing is trusted: sizes are checked before memory is taken, at most 4 MiB of it.

    Raises:
        CheckpointError: The frame is not whole and consistent.
    """
    data = memoryview(frame)
    header = read_header(data)
    interleaved = np.empty((header.words, PLANES), dtype=np.uint8)
    offset = _PAYLOAD
    for number, (method, length) in enumerate(header.planes):
        body = data[offset : offset + length]
        interleaved[:, PLANES - 1 - number] = _load_plane(body, method, header.words)
        offset += length
    return header, interleaved.reshape(-1).view(np.uint32)


def read_header(frame: bytes | memoryview) -> FrameHeader:
    """The header of a whole frame, checked against the frame's length.

    Raises:
        CheckpointError: The header is not one of ours, or does not fit the frame.
    """
    if len(frame) < _PAYLOAD:
        raise CheckpointError(f"a frame of {len(frame)} bytes is cut off in its header")
    magic, version, codec, flags, planes, words, parent = _HEAD.unpack_from(frame)
    if magic != MAGIC:
        raise CheckpointError("this is not a frame: wrong magic number")
    if version != VERSION or planes != PLANES or codec not in iter(Codec):
        raise CheckpointError(
            f"frame version {version}, codec {codec}, {planes} planes is not known here",
            todo="use the Stormsail version that wrote it, or a newer one",
        )
    if not 1 <= words <= CHUNK_ELEMENTS or not _fits(codec, flags, parent):
        raise CheckpointError("the frame's header contradicts itself")
    table = tuple(_read_plane_entry(frame, number, words) for number in range(PLANES))
    if _PAYLOAD + sum(length for _, length in table) != len(frame):
        raise CheckpointError(f"the frame's planes do not add up to its {len(frame)} bytes")
    return FrameHeader(Codec(codec), parent if flags else None, flags >> 1, words, table)


def _fits(codec: int, flags: int, parent: bytes) -> bool:
    if codec == Codec.PLAIN:
        return flags == 0 and not any(parent)
    return bool(flags & _HAS_PARENT) and flags >> 1 <= _MAX_SHIFT


def _read_plane_entry(frame: bytes | memoryview, number: int, words: int) -> tuple[Method, int]:
    method, length = _PLANE.unpack_from(frame, _HEAD.size + number * _PLANE.size)
    if method not in iter(Method):
        raise CheckpointError(f"plane {number} has the unknown method {method}")
    if (method == Method.RAW and length != words) or not 0 < length <= words:
        raise CheckpointError(f"plane {number} has {length} bytes for {words} words")
    return Method(method), length


def _store_plane(plane: NDArray[np.uint8]) -> tuple[Method, bytes | memoryview]:
    raw = plane.data
    method = _choose(_sample(plane))
    if method is not Method.RAW:
        packed = _compress(raw, method)
        if len(packed) < len(raw):
            return method, packed
    return Method.RAW, raw


def _sample(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Evenly spaced pieces: a chunk can begin in one layer and end in another kind of weight."""
    size = min(max(plane.size // _SAMPLE_SHARE, _SAMPLE_MIN_BYTES), _SAMPLE_MAX_BYTES)
    if plane.size <= size:
        return plane
    piece = size // _SAMPLE_PIECES
    starts = np.linspace(0, plane.size - piece, _SAMPLE_PIECES).astype(np.int64)
    return np.concatenate([plane[start : start + piece] for start in starts])


def _choose(sample: NDArray[np.uint8]) -> Method:
    if _entropy_bits(sample) > _NOISE_BITS:
        return Method.RAW
    literals = len(_compress(sample.data, Method.LITERALS))
    matches = len(_compress(sample.data, Method.ZSTD))
    return Method.LITERALS if literals <= matches else Method.ZSTD


def _entropy_bits(sample: NDArray[np.uint8]) -> float:
    counts = np.bincount(sample, minlength=256)
    shares = counts[counts > 0] / sample.size
    return float(-(shares * np.log2(shares)).sum())


def _compress(raw: memoryview, method: Method) -> bytes:
    return zstandard.ZstdCompressor(compression_params=_PARAMETERS[method]).compress(raw)


def _load_plane(body: memoryview, method: Method, words: int) -> NDArray[np.uint8]:
    if method is Method.RAW:
        return np.frombuffer(body, dtype=np.uint8)
    try:
        # The frame's own idea of its size is what the library allocates, so it is asked first.
        if zstandard.get_frame_parameters(body).content_size != words:
            raise CheckpointError("a plane's zstd frame has another size than the frame's header says")
        plain = zstandard.ZstdDecompressor().decompress(body, max_output_size=words, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CheckpointError(f"a plane cannot be decompressed: {error}") from error
    if len(plain) != words:
        raise CheckpointError(f"a plane gave {len(plain)} bytes for {words} words")
    return np.frombuffer(plain, dtype=np.uint8)
