"""Shards say exactly which elements they hold, and refuse nonsense."""

from __future__ import annotations

import numpy as np
import pytest

from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import InternalError


@pytest.mark.parametrize(
    "arguments",
    [
        ("", "master", (4,), 0, 4),
        ("w\n", "master", (4,), 0, 4),
        ("w", "Master weights", (4,), 0, 4),
        ("w", "master", (-1, 4), 0, 0),
        ("w", "master", (4,), -1, 2),
        ("w", "master", (4,), 0, -1),
        ("w", "master", (4,), 2, 3),
    ],
)
def test_a_spec_that_cannot_be_is_refused(arguments: tuple[str, str, tuple[int, ...], int, int]) -> None:
    with pytest.raises(InternalError):
        ShardSpec(*arguments)


def test_a_scalar_has_one_element_and_an_empty_tensor_none() -> None:
    assert ShardSpec("s", "master", (), 0, 1).size == 1
    assert ShardSpec("e", "master", (0, 8), 0, 0).size == 0


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3, np.float32),
        np.zeros(4, np.float64),
        np.zeros((2, 2), np.float32),
        np.zeros(8, np.float32)[::2],
    ],
)
def test_values_of_another_form_are_refused(values: np.typing.NDArray[np.float32]) -> None:
    with pytest.raises(InternalError):
        Shard(ShardSpec("w", "master", (4,), 0, 4), values)


def test_words_are_the_same_memory() -> None:
    values = np.ones(4, np.float32)
    shard = Shard(ShardSpec("w", "master", (4,), 0, 4), values)
    assert np.shares_memory(shard.words, values)
    assert shard.words[0] == 0x3F80_0000


def test_nonfinite_values_are_counted_in_floats_only() -> None:
    values = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    spec = ShardSpec("w", "master", (4,), 0, 4)
    assert Shard(spec, values).nonfinite == 3
    assert Shard(spec, values.view(np.uint32)).nonfinite == 0
