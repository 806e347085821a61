"""Rounding goes to the nearest, ties to even, and harms nothing that is no ordinary number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stormsail.platform.checkpoint.codec import Base, encode
from stormsail.platform.checkpoint.rounding import mantissa_bits, round_shard, round_words, to_bf16
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import InternalError

SPECIAL = [0x0, 0x8000_0000, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0x7F80_0001, 0xFFFF_FFFF]
WORD = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([*SPECIAL, 0x7F7F_FFFF, 0xFF7F_FFFF, 1, 0x007F_FFFF]))
WORDS = st.lists(WORD, min_size=1, max_size=50).map(lambda words: np.array(words, np.uint32))
BITS = st.integers(0, 23)


def finite(words: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return np.isfinite(words.view(np.float32))


@given(WORDS, BITS)
def test_what_is_kept_has_no_more_bits_and_rounding_again_changes_nothing(words: NDArray[np.uint32], bits: int) -> None:
    once = round_words(words, bits)
    assert np.array_equal(round_words(once, bits), once)
    assert not (once[finite(words)] & np.uint32((1 << (23 - bits)) - 1)).any()


@given(WORDS, BITS)
def test_nan_infinity_and_sign_stay_and_nothing_finite_becomes_infinite(words: NDArray[np.uint32], bits: int) -> None:
    rounded = round_words(words, bits)
    assert np.array_equal(finite(rounded), finite(words))
    assert np.array_equal(rounded[~finite(words)], words[~finite(words)])
    assert np.array_equal(rounded >> 31, words >> 31)


@given(WORDS, BITS)
def test_no_kept_number_is_nearer(words: NDArray[np.uint32], bits: int) -> None:
    plain = words[finite(words)]
    rounded = round_words(plain, bits)
    step = np.uint32(1 << (23 - bits))
    values, found = (item.view(np.float32).astype(np.float64) for item in (plain, rounded))
    down = (plain & ~(step - np.uint32(1))).astype(np.uint32)
    for other in (down, (down + step).astype(np.uint32)):
        usable = finite(other)
        distance = np.abs(other.view(np.float32).astype(np.float64) - values)
        assert (np.abs(found - values)[usable] <= distance[usable]).all()


def test_seven_bits_are_those_of_bf16() -> None:
    values = np.random.default_rng(0).normal(0, 1, 100_000).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(round_words(values.view(np.uint32), 7), expected.view(np.uint32))


def test_ties_go_to_even() -> None:
    # 1 + 1/256 and 1 + 3/256 lie in the middle between two numbers of 7 bits.
    values = np.array([1 + 1 / 256, 1 + 3 / 256, -1 - 1 / 256], np.float32)
    assert round_words(values.view(np.uint32), 7).view(np.float32).tolist() == [1.0, 1 + 4 / 256, -1.0]


def test_all_bits_keep_everything_and_impossible_ones_are_refused() -> None:
    words = np.array(SPECIAL, np.uint32)
    assert np.array_equal(round_words(words, 23), words)
    for bits in (-1, 24):
        with pytest.raises(InternalError):
            round_words(words, bits)


def test_master_weights_keep_more_than_moments() -> None:
    assert [mantissa_bits(component) for component in ("master", "exp_avg", "exp_avg_sq")] == [15, 7, 7]
    values = np.array([1.0001, 2.0], np.float32)
    shard = Shard(ShardSpec("w", "exp_avg", (2,), 0, 2), values)
    assert round_shard(shard).values.tolist() == [1.0, 2.0]
    assert shard.values[0] == np.float32(1.0001)
    bits = Shard(shard.spec, np.array([1, 2], np.uint32))
    assert round_shard(bits) is bits


def test_rounded_state_is_much_smaller() -> None:
    random = np.random.default_rng(0)
    old = random.normal(0, 0.02, 1 << 18).astype(np.float32)
    new = old * (1 + random.normal(0, 1e-3, old.size).astype(np.float32))
    plain, rounded = (round_words(item.view(np.uint32), 15) for item in (old, new))
    assert len(encode(rounded)) < 0.75 * len(encode(new.view(np.uint32)))
    assert len(encode(rounded, base=Base(plain, bytes(16)))) < len(encode(rounded))


@given(WORDS)
def test_bf16_is_what_the_framework_casts_to(words: NDArray[np.uint32]) -> None:
    found = to_bf16(words)
    cast = torch.from_numpy(words.view(np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    nan = np.isnan(words.view(np.float32))
    assert np.array_equal(found[~nan], cast[~nan])
    assert (found[nan] == 0x7FC0).all()
