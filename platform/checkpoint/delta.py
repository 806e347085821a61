"""Exact differences between two float states: integers of order-mapped bits, never float subtraction.

A float difference does not restore the bits. Bits that are mapped so that their order is that of the floats can be
subtracted as integers, wrap around, and come back exactly, NaN payloads and signed zeros included.
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
_TOP = np.uint32(31)


def takes_delta(component: str) -> bool:
    """Whether a component is worth keeping as a difference at all."""
    return component not in _NEVER


def int_sub(new: Words, base: Words) -> Words:
    """The difference of two states of the same elements; small changes of either sign have zero top bytes.

    Raises:
        InternalError: The two have different lengths.
    """
    _same_length(new, base)
    return _zigzag(_ordered(new) - _ordered(base))


def int_add(difference: Words, base: Words) -> Words:
    """Undo `int_sub`: the new state, bit for bit.

    Raises:
        InternalError: The two have different lengths.
    """
    _same_length(difference, base)
    return _unordered(_unzigzag(difference) + _ordered(base))


def _same_length(left: Words, right: Words) -> None:
    if left.shape != right.shape:
        raise InternalError(f"a difference needs equal lengths, not {left.shape} and {right.shape}")


def _ordered(bits: Words) -> Words:
    """Unsigned integers in the order of the floats: negatives reversed below, positives above."""
    return bits ^ ((_ZERO - (bits >> _TOP)) | _SIGN)


def _unordered(ordered: Words) -> Words:
    return ordered ^ (((ordered >> _TOP) - _ONE) | _SIGN)


def _zigzag(steps: Words) -> Words:
    """Two's complement to sign-in-the-last-bit, so that -1 is 1 and not 0xffffffff."""
    return (steps << _ONE) ^ (_ZERO - (steps >> _TOP))


def _unzigzag(coded: Words) -> Words:
    return (coded >> _ONE) ^ (_ZERO - (coded & _ONE))
