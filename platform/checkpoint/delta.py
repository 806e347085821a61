"""Exact differences between two float states: integers of order-mapped bits, never float subtraction.

A float difference does not restore the bits. Bits that are mapped so that their order is that of the floats can be
subtracted as integers, wrap around, and come back exactly, NaN payloads and signed zeros included. The map keeps
trailing zero bits, so that the differences of rounded floats have them in common and can leave them out.
"""

from __future__ import annotations

import numpy as np

from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import InternalError

# With beta1 = 0.9 a first moment forgets in ten steps: its difference is larger than itself (measured).
_NEVER = frozenset({"exp_avg"})

_ZERO = np.uint32(0)
_SIGN = np.uint32(0x8000_0000)
_ONE = np.uint32(1)


def takes_delta(component: str) -> bool:
    """Whether a component is worth keeping as a difference at all."""
    return component not in _NEVER


def int_sub(new: Words, base: Words) -> tuple[Words, int]:
    """The difference of two states of the same elements; small changes of either sign have zero top bytes.

    Returns:
        The difference, and how many trailing zero bits were left out of all of it (0 to 31).

    Raises:
        InternalError: The two have different lengths.
    """
    _same_length(new, base)
    steps = _turned(new)
    steps -= _turned(base)
    shift = _common_zeros(steps)
    if shift:
        steps.view(np.int32)[:] >>= np.int32(shift)  # keeps the sign
    return _zigzag(steps), shift


def int_add(difference: Words, base: Words, shift: int = 0) -> Words:
    """Undo `int_sub`: the new state, bit for bit.

    Raises:
        InternalError: The two have different lengths.
    """
    _same_length(difference, base)
    steps = _unzigzag(difference)
    if shift:
        steps <<= np.uint32(shift)
    steps += _turned(base)
    return _turned(steps)


def _same_length(left: Words, right: Words) -> None:
    if left.shape != right.shape:
        raise InternalError(f"a difference needs equal lengths, not {left.shape} and {right.shape}")


def _common_zeros(words: Words) -> int:
    """Trailing zero bits of all words; 0 where there is nothing but zeros."""
    seen = int(np.bitwise_or.reduce(words))
    return (seen & -seen).bit_length() - 1 if seen else 0


def _turned(bits: Words) -> Words:
    """Sign and magnitude to two's complement, in the order of the floats, and back: it is its own inverse.

    Minus zero becomes the one value that two's complement has more, so nothing is lost.
    """
    negative = _sign_mask(bits)
    turned = bits ^ negative
    turned -= negative
    negative &= _SIGN
    turned |= negative
    return turned


def _zigzag(steps: Words) -> Words:
    """Two's complement to sign-in-the-last-bit, so that -1 is 1 and not 0xffffffff."""
    coded = steps << _ONE
    coded ^= _sign_mask(steps)
    return coded


def _unzigzag(coded: Words) -> Words:
    steps = coded >> _ONE
    steps ^= _ZERO - (coded & _ONE)
    return steps


def _sign_mask(words: Words) -> Words:
    """All ones where the top bit is set."""
    return (words.view(np.int32) >> np.int32(31)).view(np.uint32)
