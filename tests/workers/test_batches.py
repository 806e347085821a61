"""Micro-batches of one rank."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from stormsail.platform.data.order import DataOrder
from stormsail.platform.data.tokens import Sample
from stormsail.workers.batches import Batch, BatchReader

TOKENS = 4


class Numbers:
    """Sample i holds i everywhere."""

    digest = "numbers"

    def samples(self) -> int:
        return 64

    def sample(self, index: int, /) -> Sample:
        full = np.full(TOKENS, index, dtype=np.int64)
        return full, full + 1, np.ones(TOKENS, dtype=np.float32)


def reader(rank: int = 0, world_size: int = 1, global_batch: int = 8, micro_batch: int = 4) -> BatchReader:
    return BatchReader(
        Numbers(),
        rank=rank,
        world_size=world_size,
        global_batch=global_batch,
        micro_batch=micro_batch,
        sequence_tokens=TOKENS,
    )


ORDER = DataOrder(64, 3, ())


def ids(batches: list[Batch]) -> list[int]:
    return [int(row[0]) for tokens, _, mask in batches for row, m in zip(tokens, mask, strict=True) if m.sum()]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_together_read_the_global_batch_once_at_any_world_size(world_size: int) -> None:
    whole = sorted(ids(reader().micro_batches(5, ORDER)))
    parts = [ids(reader(rank, world_size).micro_batches(5, ORDER)) for rank in range(world_size)]
    assert sorted(itertools.chain(*parts)) == whole


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_take_equally_many_micro_steps(world_size: int) -> None:
    counts = {len(reader(rank, world_size).micro_batches(0, ORDER)) for rank in range(world_size)}
    assert len(counts) == 1


def test_padding_weighs_nothing() -> None:
    batches = [b for rank in range(3) for b in reader(rank, 3).micro_batches(0, ORDER)]
    assert sum(float(mask.sum()) for _, _, mask in batches) == 8 * TOKENS


def test_a_step_reads_the_same_after_any_other_steps() -> None:
    one = reader()
    first = one.micro_batches(9, ORDER)
    one.micro_batches(2, ORDER)
    again = one.micro_batches(9, ORDER)
    assert all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))


def test_targets_and_mask_come_with_their_types() -> None:
    tokens, targets, mask = reader().micro_batches(0, ORDER)[0]
    assert (tokens.dtype, targets.dtype, mask.dtype) == (torch.int64, torch.int64, torch.float32)
    assert torch.equal(targets, tokens + 1)
