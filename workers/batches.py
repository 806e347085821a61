"""From step numbers to tensors: this rank's micro-batches, a pure function of (order, step, rank, world size)."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from stormsail.platform.data.order import PADDING, DataOrder, Ids, rank_share
from stormsail.platform.data.source import DataSource

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class BatchReader:
    """Reads the micro-batches of one rank.

    Args:
        source: The samples.
        rank: This rank.
        world_size: Ranks that share a global batch.
        global_batch: Samples per step over all ranks.
        micro_batch: Samples per forward pass of one rank.
        sequence_tokens: Tokens per sample.
    """

    def __init__(
        self,
        source: DataSource,
        *,
        rank: int,
        world_size: int,
        global_batch: int,
        micro_batch: int,
        sequence_tokens: int,
    ) -> None:
        self._source = source
        self._rank = rank
        self._world_size = world_size
        self._global_batch = global_batch
        self._micro_batch = micro_batch
        self._sequence_tokens = sequence_tokens
        self.samples = source.samples()
        self.nominal_tokens = global_batch * sequence_tokens

    def micro_batches(self, step: int, order: DataOrder) -> list[Batch]:
        """tokens, targets (int64 `[B, T]`) and mask (float32 `[B, T]`) of each micro-batch of the step."""
        ids = order.sample_ids(step, self._global_batch)
        shares = rank_share(ids, rank=self._rank, world_size=self._world_size, micro_batch=self._micro_batch)
        return [collate(self._source, share, self._sequence_tokens) for share in shares]


def collate(source: DataSource, ids: Ids, sequence_tokens: int) -> Batch:
    """The samples of one micro-batch as tensors; a place that holds no sample is all zeros."""
    shape = (len(ids), sequence_tokens)
    tokens = np.zeros(shape, dtype=np.int64)
    targets = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.float32)
    for row, sample_id in enumerate(ids):
        if sample_id != PADDING:
            tokens[row], targets[row], mask[row] = source.sample(int(sample_id))
    return torch.from_numpy(tokens), torch.from_numpy(targets), torch.from_numpy(mask)


def checksum(batch: Batch) -> int:
    """A sum over the samples of a micro-batch: of what they hold, and not of where they lie. Padding adds nothing."""
    tokens, _, mask = batch
    return sum(zlib.crc32(row.numpy().tobytes()) for row, real in zip(tokens, mask, strict=True) if bool(real.any()))
