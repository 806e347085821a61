"""What the state is, in 128 bits: a digest that adds up, so it does not depend on who holds which elements.

Each element contributes `(bits + K) * T[index mod 2^16] * M(tensor, component, index div 2^16)` modulo 2^64, in two
lanes with their own K, T and M. T and M are odd and pseudo-random, so one changed bit always shows, and anything else
that is not aimed at the digest (moved, swapped, stale or missing pieces) goes unseen about once in 2^64 at worst. It
guards against accidents, not against attackers, and it is integer arithmetic that any device can do.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stormsail.platform.checkpoint.shards import Shard, Words
from stormsail.platform.errors import CheckpointError, InternalError

BLOCK_ELEMENTS = 1 << 16

_Table: TypeAlias = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_TABLE_SEEDS = (0x7374_6F72_6D73_6169, 0x6C64_6967_6573_7431)
_OFFSETS = (0xA076_1D64_78BD_642F, 0xE703_7ED1_A0B4_28DB)
_HEX = re.compile(r"^[0-9a-f]{32}$")


@dataclass(frozen=True, slots=True)
class Digest:
    """A sum over elements; pieces of any partition add up to the digest of the whole.

    Attributes:
        first: First lane, modulo 2^64.
        second: Second lane, modulo 2^64.
    """

    first: int = 0
    second: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest((self.first + other.first) & _MASK, (self.second + other.second) & _MASK)

    @property
    def hex(self) -> str:
        """32 lower-case hexadecimal digits."""
        return f"{self.first:016x}{self.second:016x}"

    def __str__(self) -> str:
        return self.hex

    @classmethod
    def from_hex(cls, text: str) -> Digest:
        """Read `hex` back.

        Raises:
            CheckpointError: The text is not 32 lower-case hexadecimal digits.
        """
        if not _HEX.fullmatch(text):
            raise CheckpointError(f"{text!r} is not a digest", todo="expected 32 lower-case hexadecimal digits")
        return cls(int(text[:16], 16), int(text[16:], 16))

    @classmethod
    def of(cls, shard: Shard) -> Digest:
        """The digest of these elements where they stand in their tensor. Any thread; numpy drops the GIL."""
        spec = shard.spec
        return cls.of_words(spec.name, spec.component, spec.start, shard.words)

    @classmethod
    def of_words(cls, name: str, component: str, start: int, words: Words) -> Digest:
        """The digest of `words` as elements `start` onwards of a tensor's component."""
        seeds = _seeds(name, component)
        first = second = 0
        done = 0
        while done < words.size:
            block, inside = divmod(start + done, BLOCK_ELEMENTS)
            take = min(words.size - done, BLOCK_ELEMENTS - inside)
            wide = words[done : done + take].astype(np.uint64)
            first += _lane(0, seeds[0], block, inside, wide)
            second += _lane(1, seeds[1], block, inside, wide)
            done += take
        return cls(first & _MASK, second & _MASK)


def total(digests: list[Digest] | tuple[Digest, ...]) -> Digest:
    """The sum of digests; the zero digest for none."""
    return sum(digests, start=Digest())


def word_sum(array: NDArray[Any]) -> int:
    """Sum modulo 2^64 of the array's little-endian 64-bit words, at memory speed; guards a plain copy.

    The last word is filled up with zeros. Changes with the bits, but not with their order: it is no digest.

    Raises:
        InternalError: The array is not contiguous.
    """
    if not array.flags.c_contiguous:
        raise InternalError("the word sum needs a contiguous array")
    raw = array.reshape(-1).view(np.uint8)
    whole = raw.size // 8 * 8
    words = int(raw[:whole].view(np.uint64).sum(dtype=np.uint64))
    return (words + int.from_bytes(raw[whole:].tobytes(), "little")) & _MASK


def _lane(lane: int, seed: int, block: int, inside: int, wide: _Table) -> int:
    table, sums = _tables()[lane]
    stop = inside + wide.size
    weighted = int(np.einsum("i,i->", wide, table[inside:stop]))
    offset = _OFFSETS[lane] * (int(sums[stop]) - int(sums[inside]))
    return _multiplier(seed, block) * (weighted + offset)


def _multiplier(seed: int, block: int) -> int:
    """Odd, different for each block of each tensor; the mixing steps are those of splitmix64."""
    value = (seed + (block + 1) * _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return value ^ (value >> 31) | 1


@cache
def _seeds(name: str, component: str) -> tuple[int, int]:
    hashed = hashlib.sha256(f"{name}\x00{component}".encode()).digest()
    return int.from_bytes(hashed[:8], "little"), int.from_bytes(hashed[8:16], "little")


@cache
def _tables() -> tuple[tuple[_Table, _Table], tuple[_Table, _Table]]:
    """Per lane: the weights of the positions in a block, and their running sums (one longer, from 0)."""
    return _table(_TABLE_SEEDS[0]), _table(_TABLE_SEEDS[1])


def _table(seed: int) -> tuple[_Table, _Table]:
    weights = np.array([_multiplier(seed, index) for index in range(BLOCK_ELEMENTS)], dtype=np.uint64)
    sums = np.zeros(BLOCK_ELEMENTS + 1, dtype=np.uint64)
    np.cumsum(weights, out=sums[1:])
    return weights, sums
