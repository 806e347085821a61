"""Which samples a step trains on: pure arithmetic, whatever the number of workers or restarts.

Three numbers, each a function of the one before:

- *turn*: the n-th sample that the run consumes (`step * global_batch + place in the batch`);
- *position*: its place in the endless data order, which jumps over the skipped ranges;
- *sample id*: the position's sample in the permutation of its epoch.

Skipping names positions, never steps, so that it means the same samples after every restart. A permutation
is a keyed bijection (a Feistel network with cycle walking), not a shuffled list: nothing is stored, and any
step can be asked for directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

PADDING = -1
"""The sample id of a place that holds no sample and weighs nothing."""

_ROUNDS = 6
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class DataOrder:
    """The endless order of samples of one run.

    Attributes:
        samples: Samples in the data set (at least 1); one epoch uses each exactly once.
        seed: Chooses the order.
        skip: Positions [start, stop) to leave out, in any order; overlapping ranges count once.
    """

    samples: int
    seed: int
    skip: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"a data order needs at least one sample, not {self.samples}")
        for start, stop in self.skip:
            if not 0 <= start <= stop:
                raise ValueError(f"skip range [{start}, {stop}) is not a range of positions")

    def positions(self, step: int, global_batch: int) -> Ids:
        """The absolute positions of one global batch, in order; shape [global_batch]."""
        turns = np.arange(step * global_batch, (step + 1) * global_batch, dtype=np.int64)
        ranges = merge_ranges(self.skip)
        if not ranges:
            return turns
        starts = np.array([start for start, _ in ranges], dtype=np.int64)
        skipped = np.cumsum([stop - start for start, stop in ranges], dtype=np.int64)
        # The turn that would have fallen on the first position of each range.
        first_turn = starts - np.concatenate([np.zeros(1, np.int64), skipped[:-1]])
        before = np.searchsorted(first_turn, turns, side="right")
        jumped: Ids = turns + np.concatenate([np.zeros(1, np.int64), skipped])[before]
        return jumped

    def sample_ids(self, step: int, global_batch: int) -> Ids:
        """The samples of one global batch, in order; shape [global_batch], each in [0, samples)."""
        return self.samples_at(self.positions(step, global_batch))

    def samples_at(self, positions: Ids) -> Ids:
        """The sample at each position; the batch may reach over an epoch's end."""
        epochs, offsets = np.divmod(positions, self.samples)
        return _permute(offsets.astype(np.uint64), epochs.astype(np.uint64), self.samples, self.seed)


def merge_ranges(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Sort ranges [start, stop), drop the empty ones and join those that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if start == stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def micro_steps(global_batch: int, world_size: int, micro_batch: int) -> int:
    """Forward passes per step, the same on every rank."""
    largest_share = -(-global_batch // world_size)
    return -(-largest_share // micro_batch)


def rank_share(ids: Ids, rank: int, world_size: int, micro_batch: int) -> list[Ids]:
    """One rank's part of a global batch, cut into micro-batches.

    Every rank gets the same number of micro-batches, each of shape [micro_batch]; places without a sample hold
    `PADDING`. The ranks' real ids together are the batch, each once, in order of rank.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a world of {world_size}")
    total = len(ids)
    share = ids[rank * total // world_size : (rank + 1) * total // world_size]
    count = micro_steps(total, world_size, micro_batch)
    padded = np.full(count * micro_batch, PADDING, dtype=np.int64)
    padded[: len(share)] = share
    return list(padded.reshape(count, micro_batch))


def _permute(offsets: _Words, epochs: _Words, samples: int, seed: int) -> Ids:
    """Map each offset to its sample in that epoch's permutation of [0, samples)."""
    half = max(1, ((samples - 1).bit_length() + 1) // 2)
    keys = _mix(epochs ^ np.uint64(_mix_int(seed & _MASK64)))
    values = _feistel(offsets, keys, half)
    # The network permutes [0, 4**half), less than four times as much as needed; what lands outside walks on
    # along its cycle until it is inside, which keeps the map a bijection.
    outside = values >= np.uint64(samples)
    while outside.any():
        values[outside] = _feistel(values[outside], keys[outside], half)
        outside = values >= np.uint64(samples)
    return values.astype(np.int64)


def _feistel(values: _Words, keys: _Words, half: int) -> _Words:
    shift = np.uint64(half)
    mask = np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for number in range(_ROUNDS):
        salted = keys + np.uint64(_mix_int(number + 1))
        left, right = right, left ^ (_mix(salted ^ right) & mask)
    return (left << shift) | right


def _mix(words: _Words) -> _Words:
    """Scatter 64-bit words (the finaliser of the splitmix64 generator); arithmetic wraps on purpose."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_int(word: int) -> int:
    """`_mix` for one Python integer: numpy warns when a scalar wraps, and an array does not."""
    return int(_mix(np.array([word], dtype=np.uint64))[0])
