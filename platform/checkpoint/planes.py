"""One byte plane of a frame: stored raw, by zstd, or by zstd's Huffman literals alone, as a sample of it deserves; pure.

In float state nearly all that can be saved sits in the exponents; the low bytes are noise that no level of any
compressor shrinks.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias, TypeVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from stormsail.platform.errors import CheckpointError

Plane: TypeAlias = NDArray[np.uint8]
Halves: TypeAlias = NDArray[np.uint16]
_Element = TypeVar("_Element", bound=np.generic)


class Method(IntEnum):
    """How one byte plane is stored."""

    RAW = 0
    ZSTD = 1
    LITERALS = 2


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
Stored: TypeAlias = tuple[Method, bytes | memoryview]

_PARAMETERS = {Method.ZSTD: _LEVEL_1, Method.LITERALS: _LITERALS_ONLY}


def store_plane(plane: Plane) -> Stored:
    """The plane as it is stored; a raw one is not copied. The same bytes are stored the same way."""
    raw = plane.data
    method = _choose(sample(plane))
    if method is not Method.RAW:
        packed = _compress(raw, method)
        if len(packed) < len(raw):
            return method, packed
    return Method.RAW, raw


def load_plane(body: memoryview, method: Method, size: int) -> Plane:
    """The `size` bytes of a plane; nothing is trusted, and no more than that is allocated.

    Raises:
        CheckpointError: The body is not that of such a plane.
    """
    if method is Method.RAW:
        return np.frombuffer(body, dtype=np.uint8)
    try:
        # The frame's own idea of its size is what the library allocates, so it is asked first.
        if zstandard.get_frame_parameters(body).content_size != size:
            raise CheckpointError("a plane's zstd frame has another size than the frame's header says")
        plain = zstandard.ZstdDecompressor().decompress(body, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CheckpointError(f"a plane cannot be decompressed: {error}") from error
    if len(plain) != size:
        raise CheckpointError(f"a plane gave {len(plain)} bytes, expected {size}")
    return np.frombuffer(plain, dtype=np.uint8)


def sample(plane: NDArray[_Element]) -> NDArray[_Element]:
    """Evenly spaced pieces: a chunk can begin in one layer and end in another kind of weight."""
    size = min(max(plane.size // _SAMPLE_SHARE, _SAMPLE_MIN_BYTES), _SAMPLE_MAX_BYTES)
    if plane.size <= size:
        return plane
    piece = size // _SAMPLE_PIECES
    starts = np.linspace(0, plane.size - piece, _SAMPLE_PIECES).astype(np.int64)
    return np.concatenate([plane[start : start + piece] for start in starts])


def are_noise(halves: Halves) -> bool:
    """Whether neither byte of 16-bit words is worth coding, so that they can stay together as they are."""
    some = sample(halves)
    return all(
        entropy_bits(byte) > _NOISE_BITS for byte in ((some >> np.uint16(8)).astype(np.uint8), some.astype(np.uint8))
    )


def entropy_bits(some: Plane) -> float:
    """Bits (0 to 8) that a byte is worth, each for itself."""
    counts = np.bincount(some, minlength=256)
    shares = counts[counts > 0] / some.size
    return float(-(shares * np.log2(shares)).sum())


def literal_bytes(some: Plane) -> int:
    """What Huffman coding alone makes of these bytes."""
    return len(_compress(some.data, Method.LITERALS))


def _choose(some: Plane) -> Method:
    if entropy_bits(some) > _NOISE_BITS:
        return Method.RAW
    literals = literal_bytes(some)
    matches = len(_compress(some.data, Method.ZSTD))
    return Method.LITERALS if literals <= matches else Method.ZSTD


def _compress(raw: memoryview, method: Method) -> bytes:
    return zstandard.ZstdCompressor(compression_params=_PARAMETERS[method]).compress(raw)
