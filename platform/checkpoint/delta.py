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

_SIGN = np.uint32(0x8000_0000)
_ONE = np.uint32(1)


def takes_delta(component: str) -> bool:
    """Whether a component is worth keeping as a difference at all."""
    return component not in _NEVER


def common_zeros(new: Words, base: Words) -> int:
    """Trailing zero bits (0 to 31) that all words of two states have in common, as rounded states do."""
    for words in (new[:1], new, base):
        if int(np.bitwise_or.reduce(words)) & 1:
            return 0
    seen = int(np.bitwise_or.reduce(new) | np.bitwise_or.reduce(base))
    return (seen & -seen).bit_length() - 1 if seen else 0


def int_sub(new: Words, base: Words, shift: int = 0) -> Words:
    """The difference of two states of the same elements; small changes of either sign have zero top bytes.

    Args:
        new: The newer state.
        base: The older one.
        shift: Leave out this many trailing zero bits, which both states must have.

    Raises:
        InternalError: The two have different lengths.
    """
    _same_length(new, base)
    steps, older, spare = np.empty_like(new), np.empty_like(new), np.empty_like(new)
    _turn(new, steps, spare)
    _turn(base, older, spare)
    steps -= older
    if shift:
        steps.view(np.int32)[:] >>= np.int32(shift)  # keeps the sign
    _zigzag(steps, spare)
    return steps


def int_add(difference: Words, base: Words, shift: int = 0) -> Words:
    """Undo `int_sub`: the new state, bit for bit.

    Raises:
        InternalError: The two have different lengths.
    """
    _same_length(difference, base)
    steps, older, spare = np.empty_like(base), np.empty_like(base), np.empty_like(base)
    _unzigzag(difference, steps, spare)
    if shift:
        steps <<= np.uint32(shift)
    _turn(base, older, spare)
    steps += older
    _turn(steps, older, spare)
    return older


def _same_length(left: Words, right: Words) -> None:
    if left.shape != right.shape:
        raise InternalError(f"a difference needs equal lengths, not {left.shape} and {right.shape}")


# Fresh memory costs more than the arithmetic, so results and one spare array are handed in.


def _turn(bits: Words, turned: Words, spare: Words) -> None:
    """Sign and magnitude to two's complement, in the order of the floats, and back: it is its own inverse.

    Minus zero becomes the one value that two's complement has more, so nothing is lost.
    """
    _sign_mask(bits, spare)
    np.bitwise_xor(bits, spare, out=turned)
    turned -= spare
    spare &= _SIGN
    turned |= spare


def _zigzag(steps: Words, spare: Words) -> None:
    """Two's complement to sign-in-the-last-bit, so that -1 is 1 and not 0xffffffff."""
    _sign_mask(steps, spare)
    steps <<= _ONE
    steps ^= spare


def _unzigzag(coded: Words, steps: Words, spare: Words) -> None:
    np.bitwise_and(coded, _ONE, out=spare)
    np.negative(spare, out=spare)
    np.right_shift(coded, _ONE, out=steps)
    steps ^= spare


def _sign_mask(words: Words, mask: Words) -> None:
    """All ones where the top bit is set."""
    np.right_shift(words.view(np.int32), np.int32(31), out=mask.view(np.int32))
