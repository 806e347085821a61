"""Copying live state into a slot: the only thing that training waits for at a checkpoint.

A sum of the live words is taken with the copy, while they are in the cache, so that it costs next to nothing; the copy
must have the same sum whenever it is looked at later. On a GPU all copies are queued first and waited for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import WorkerFaultError

_BLOCK_WORDS = 1 << 16  # 256 KiB: live words and copy both stay in a second-level cache
_MASK = (1 << 64) - 1


def copy_with_sums(live: Sequence[torch.Tensor], targets: Sequence[Words]) -> list[int]:
    """Copy flat fp32 tensors into words of the same length; returns each one's sum, as `sum_of` finds it in the copy.

    Blocks until all is copied. Called from the training thread.
    """
    if live and live[0].is_cuda:
        return _from_gpu(live, targets)
    return [_from_cpu(tensor, target) for tensor, target in zip(live, targets, strict=True)]


def pin(words: Words) -> None:
    """Lock memory in place for the GPU's copy engine; without it a copy from the GPU is several times slower.

    It stays so until the process ends. Any thread.

    Raises:
        WorkerFaultError: The driver refused.
    """
    runtime: Any = torch.cuda
    code = int(runtime.cudart().cudaHostRegister(words.ctypes.data, words.nbytes, 0))
    if code:
        raise WorkerFaultError(
            f"{words.nbytes} bytes for snapshots cannot be pinned: CUDA error {code}",
            todo="raise the limit of locked memory (`ulimit -l`), or lower checkpoint.ring",
        )


def sum_of(words: Words) -> int:
    """Sum modulo 2^64 of pairs of words, the last one alone if their number is odd. Any thread, without the GIL.

    The words must begin at a multiple of 8 bytes.
    """
    pairs = words.size // 2
    total = int(words[: 2 * pairs].view(np.uint64).sum(dtype=np.uint64))
    return (total + (int(words[-1]) if words.size % 2 else 0)) & _MASK


def _from_cpu(live: torch.Tensor, target: Words) -> int:
    source = live.detach().numpy().view(np.uint32)
    # A partition may begin at an odd word; then the pairs that are aligned in the copy are not aligned here.
    summed = sum_of if live.data_ptr() % 8 == 0 else _sum_unaligned
    total = 0
    for start in range(0, source.size, _BLOCK_WORDS):
        block, copy = source[start : start + _BLOCK_WORDS], target[start : start + _BLOCK_WORDS]
        total += summed(block)
        np.copyto(copy, block)
    return total & _MASK


def _sum_unaligned(words: Words) -> int:
    """`sum_of` for words whose pairs are not aligned: even words count 1, odd ones 2^32."""
    even, odd = words[0::2], words[1::2]
    return (int(even.sum(dtype=np.uint64)) + (int(odd.sum(dtype=np.uint64)) << 32)) & _MASK


def _from_gpu(live: Sequence[torch.Tensor], targets: Sequence[Words]) -> list[int]:
    sums = [_queue(tensor, target) for tensor, target in zip(live, targets, strict=True)]
    torch.cuda.synchronize()
    return [(int(even) + (int(odd) << 32)) & _MASK for even, odd in sums]


def _queue(live: torch.Tensor, target: Words) -> tuple[torch.Tensor, torch.Tensor]:
    """Queue the copy of one tensor; gives the sums, to come, of its even and its odd words, unsigned where it counts."""
    bits = live.detach().view(torch.int32)
    torch.from_numpy(target.view(np.int32)).copy_(bits, non_blocking=True)
    even, odd = bits[0::2], bits[1::2]
    borrowed = (even < 0).sum(dtype=torch.int64) << 32  # odd words are shifted out of where their sign would matter
    return even.sum(dtype=torch.int64) + borrowed, odd.sum(dtype=torch.int64)
