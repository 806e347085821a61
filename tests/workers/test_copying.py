"""The copy is the live state, bit for bit, and its sum is what the copy must have ever after."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stormsail.platform.errors import WorkerFaultError
from stormsail.workers import copying
from stormsail.workers.copying import copy_with_sums, sum_of

LONG = 150_001  # more than two blocks, and an odd number


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1 << 16, LONG])
@pytest.mark.parametrize("first", [0, 1])
def test_the_sum_of_the_live_words_is_that_of_the_copy(count: int, first: int) -> None:
    live = torch.randn(count + first)[first:]
    target = np.zeros(count, np.uint32)
    [found] = copy_with_sums([live], [target])
    assert np.array_equal(target, live.numpy().view(np.uint32))
    assert found == sum_of(target)


def test_the_sum_is_that_of_64_bit_words_by_plain_arithmetic() -> None:
    words = np.random.default_rng(1).integers(0, 1 << 32, 1001, dtype=np.uint32)
    padded = [*map(int, words), 0]
    expected = sum(low + (high << 32) for low, high in zip(padded[::2], padded[1::2], strict=True)) % (1 << 64)
    assert sum_of(words) == expected


@settings(max_examples=50)
@given(st.integers(0, LONG - 1), st.integers(0, 31))
def test_one_flipped_bit_changes_it(index: int, bit: int) -> None:
    words = np.arange(LONG, dtype=np.uint32)
    before = sum_of(words)
    words[index] ^= np.uint32(1 << bit)
    assert sum_of(words) != before


@pytest.mark.parametrize("code", [0, 2])
def test_memory_that_cannot_be_pinned_is_an_error(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.zeros(1024, np.uint32)
    asked: list[tuple[int, int, int]] = []

    def register(*what: int) -> int:
        asked.append((what[0], what[1], what[2]))
        return code

    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=register))
    with pytest.raises(WorkerFaultError, match="CUDA error 2") if code else nullcontext():
        copying.pin(words)
    assert asked == [(words.ctypes.data, 4096, 0)]


def test_nothing_to_copy_is_no_error() -> None:
    assert copy_with_sums([], []) == []


@pytest.mark.parametrize("count", [0, 1, 2, LONG])
def test_a_device_s_own_arithmetic_gives_the_same_sum(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same operations as on a GPU, with nothing to wait for."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    live = [torch.randn(count), torch.randn(count + 1)[1:]]
    targets = [np.zeros(count, np.uint32) for _ in live]
    assert copying._from_gpu(live, targets) == [sum_of(target) for target in targets]
    assert all(
        np.array_equal(target, tensor.numpy().view(np.uint32)) for target, tensor in zip(targets, live, strict=True)
    )
