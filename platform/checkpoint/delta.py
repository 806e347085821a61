"""Exact differences between two float states: integers of order-mapped bits, never float subtraction.

A float difference does not restore the bits. Bits that are mapped so that their order is that of the floats can be
subtracted as integers, wrap around, and come back exactly, NaN payloads and signed zeros included. The map keeps
trailing zero bits that all words have in common, so that the differences of rounded floats can leave them out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from stormsail.platform.checkpoint.planes import entropy_bits, sample
from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import InternalError

# Says of newer words and older ones of the same elements whether their difference is worth writing.
Worth: TypeAlias = Callable[[Words, Words], bool]

# With beta1 = 0.9 a first moment forgets in ten steps: its difference is larger than itself (measured).
_NEVER = frozenset({"exp_avg"})

# A restore fetches, checks and decodes what a difference builds on as well: what saves less than an eighth of a word's
# bits costs more there than it spares here, and so do a few words with a request of their own.
_WORTH_BITS = 4.0
_WORTH_WORDS = 4096

_MAGNITUDE = 0x7FFF_FFFF
# Added to each difference: small ones of either sign have the same top byte then, and nearly always the same second.
_CENTRE = np.uint32(0x0080_8080)


def takes_delta(component: str) -> bool:
    """Whether a component is worth keeping as a difference at all."""
    return component not in _NEVER


def is_worth(new: Words, base: Words) -> bool:
    """Whether the difference to an older state saves enough, by a sample of the words; the same ones answer the same."""
    if new.size < _WORTH_WORDS:
        return False
    words, older = sample(new), sample(base)
    turned = words << np.uint32(1) | words >> np.uint32(31)  # as they are coded where nothing is taken away
    return _bits(turned) - _bits(int_sub(words, older, common_zeros(words, older))) >= _WORTH_BITS


def _bits(words: Words) -> float:
    """What coding each byte of a word by itself leaves of its 32 bits."""
    return sum(entropy_bits(plane) for plane in np.ascontiguousarray(words.view(np.uint8).reshape(-1, 4).T))


def common_zeros(new: Words, base: Words) -> int:
    """Trailing zero bits (0 to 31) that all words of two states have in common, as rounded states do."""
    for words in (new[:1], new, base):
        if int(np.bitwise_or.reduce(words)) & 1:
            return 0
    seen = int(np.bitwise_or.reduce(new) | np.bitwise_or.reduce(base))
    return (seen & -seen).bit_length() - 1 if seen else 0


def int_sub(new: Words, base: Words, shift: int = 0) -> Words:
    """The difference of two states of the same elements; small changes of either sign have the same top bytes.

    Args:
        new: The newer state.
        base: The older one.
        shift: Leave out this many trailing zero bits, which both states must have.

    Raises:
        InternalError: The two have different lengths.
    """
    _same_length(new, base)
    steps, older = np.empty_like(new), np.empty_like(new)
    np.subtract(_in_order(new, steps, shift), _in_order(base, older, shift), out=steps)
    if shift:
        steps.view(np.int32)[:] >>= np.int32(shift)  # keeps the sign
    steps += _CENTRE
    return steps


def int_add(difference: Words, base: Words, shift: int = 0) -> Words:
    """Undo `int_sub`: the new state, bit for bit.

    Raises:
        InternalError: The two have different lengths.
    """
    _same_length(difference, base)
    steps, spare = difference - _CENTRE, np.empty_like(base)
    if shift:
        steps <<= np.uint32(shift)
    steps += _in_order(base, spare, shift)
    return _in_order(steps, spare, shift)


def _same_length(left: Words, right: Words) -> None:
    if left.shape != right.shape:
        raise InternalError(f"a difference needs equal lengths, not {left.shape} and {right.shape}")


def _in_order(bits: Words, spare: Words, shift: int) -> Words:
    """Bits in the order of the floats, and back: negative ones with all bits turned but the sign and those left out.

    Written into `spare`, as fresh memory costs more than the arithmetic; but words without a sign, as second moments
    are, are in order already and given back themselves.
    """
    if not bits.size or bits.view(np.int32).min() >= 0:
        return bits
    np.right_shift(bits.view(np.int32), np.int32(31), out=spare.view(np.int32))  # all ones where the sign is set
    spare &= np.uint32(_MAGNITUDE >> shift << shift)
    spare ^= bits
    return spare
