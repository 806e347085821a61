"""Rounding mode: fewer mantissa bits in the live state, so that what is stored is small and still exact; pure.

What is rounded is the state that training goes on with, at checkpoint steps only. The restore then gives back every
bit of it, as without rounding; what changes is the run itself, by less than one part in 2^(bits + 1) of each value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stormsail.platform.checkpoint.shards import Shard, Words
from stormsail.platform.errors import InternalError

MOMENT_BITS = 7
MASTER_BITS = 15

_MASTER = "master"
_MANTISSA_BITS = 23
_ONE = np.uint32(1)
_HALF = np.uint32(16)
_EXPONENT = np.uint32(0x7F80_0000)
_MANTISSA = np.uint32(0x007F_FFFF)
_QUIET_NAN = np.uint16(0x7FC0)


def mantissa_bits(component: str) -> int:
    """How many mantissa bits a component keeps: 15 for master weights, 7 (as bf16 has) for anything else."""
    return MASTER_BITS if component == _MASTER else MOMENT_BITS


def round_words(words: Words, bits: int) -> Words:
    """Floats rounded to `bits` mantissa bits, to the nearest and ties to even.

    NaN (with its payload), infinities and signed zeros stay as they are. A finite value stays finite: the few that
    would round up to infinity are cut instead.

    Args:
        words: The floats' bits; not changed.
        bits: 0 to 23; 23 keeps everything.

    Raises:
        InternalError: Another number of bits.
    """
    if not 0 <= bits <= _MANTISSA_BITS:
        raise InternalError(f"a float32 has 0 to {_MANTISSA_BITS} mantissa bits, not {bits}")
    drop = _MANTISSA_BITS - bits
    if drop == 0:
        return words.copy()
    keep = np.uint32((0xFFFF_FFFF << drop) & 0xFFFF_FFFF)
    # Just below half of the last place kept, and one more where that place is odd: ties go to even. A carry runs into
    # the exponent, which is the next larger float.
    half = np.uint32((1 << (drop - 1)) - 1)
    odd = (words >> np.uint32(drop)) & _ONE
    rounded = (words + half + odd) & keep
    special = (words & _EXPONENT) == _EXPONENT
    overflown = ((rounded & _EXPONENT) == _EXPONENT) & ~special
    rounded[overflown] = words[overflown] & keep
    rounded[special] = words[special]
    return rounded


def round_shard(shard: Shard) -> Shard:
    """The shard with as many mantissa bits as its component keeps (bits that are no float stay); it is not changed."""
    if shard.values.dtype != np.dtype(np.float32):
        return shard
    return Shard(shard.spec, round_words(shard.words, mantissa_bits(shard.spec.component)).view(np.float32))


def to_bf16(words: Words) -> NDArray[np.uint16]:
    """Floats as bf16, bit for bit as a cast of the framework: to the nearest, ties to even, NaN as a quiet NaN.

    Unlike `round_words` this lets the few largest floats become infinite, as the cast does.
    """
    odd = (words >> _HALF) & _ONE
    nan = ((words & _EXPONENT) == _EXPONENT) & ((words & _MANTISSA) != 0)
    rounded = ((words + np.uint32(0x7FFF) + odd) >> _HALF).astype(np.uint16)
    rounded[nan] = _QUIET_NAN
    return rounded
