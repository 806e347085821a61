"""Differences restore every bit, whatever the bits are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stormsail.platform.checkpoint.codec import Base, encode
from stormsail.platform.checkpoint.delta import common_zeros, int_add, int_sub, is_worth, takes_delta
from stormsail.platform.errors import InternalError

SPECIAL = [0x0, 0x8000_0000, 0x1, 0x8000_0001, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFFFF_FFFF, 0x7F7F_FFFF]
WORD = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from(SPECIAL))


def back(new: NDArray[np.uint32], base: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32], int]:
    shift = common_zeros(new, base)
    return int_sub(new, base, shift), base, shift


@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=50))
def test_adding_back_gives_the_same_bits(pairs: list[tuple[int, int]]) -> None:
    new, base = (np.array(column, np.uint32) for column in zip(*pairs, strict=True))
    assert np.array_equal(int_add(*back(new, base)), new)


def test_nan_signed_zero_and_subnormals_meet_each_other_exactly() -> None:
    new, base = (grid.reshape(-1).astype(np.uint32) for grid in np.meshgrid(SPECIAL, SPECIAL))
    assert np.array_equal(int_add(*back(new, base)), new)


def steps(new: NDArray[np.float32], base: NDArray[np.float32]) -> list[int]:
    """Steps of the difference, told from what equal states give."""
    words, older = new.view(np.uint32), base.view(np.uint32)
    return [int(step) for step in (int_sub(words, older) - int_sub(words, words)).view(np.int32)]


def test_equal_states_differ_by_one_and_the_same_word() -> None:
    words = np.array(SPECIAL, np.uint32)
    assert len(set(int_sub(words, words))) == 1


@pytest.mark.parametrize("value", [1.0, -1.0, 1e-40, -3e38])
def test_neighbouring_floats_differ_by_one_step_in_either_direction(value: float) -> None:
    base = np.array([value], np.float32)
    for towards, step in ((np.inf, 1), (-np.inf, -1)):
        assert steps(np.nextafter(base, np.float32(towards), dtype=np.float32), base) == [step]


def test_a_small_step_across_zero_is_small() -> None:
    (step,) = steps(np.array([-1e-45], np.float32), np.array([1e-45], np.float32))
    assert -4 < step < 0


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_small_steps_of_either_sign_share_their_top_bytes(size: int) -> None:
    base = np.full(2, 1.5, np.float32).view(np.uint32)
    up, down = (int(word) for word in int_sub(base + np.array([size, -size], np.int32).view(np.uint32), base))
    assert up >> 16 == down >> 16


def test_different_lengths_are_refused() -> None:
    with pytest.raises(InternalError):
        int_sub(np.zeros(2, np.uint32), np.zeros(3, np.uint32))


def test_first_moments_are_never_kept_as_differences() -> None:
    assert [takes_delta(component) for component in ("master", "exp_avg", "exp_avg_sq", "momentum_buffer")] == [
        True,
        False,
        True,
        True,
    ]


@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=50), st.integers(0, 23))
def test_rounded_states_leave_their_zero_bits_out_across_signs_too(pairs: list[tuple[int, int]], drop: int) -> None:
    keep = np.uint32((0xFFFF_FFFF << drop) & 0xFFFF_FFFF)
    new, base = (np.array(column, np.uint32) & keep for column in zip(*pairs, strict=True))
    difference, base, shift = back(new, base)
    assert shift >= drop or not (new | base).any()
    assert np.array_equal(int_add(difference, base, shift), new)


def test_the_largest_step_comes_back() -> None:
    ends = np.array([0x8000_0000, 0xFFFF_FFFF, 0x7FFF_FFFF, 0], np.uint32)
    for base in ends:
        assert np.array_equal(int_add(*back(ends, np.full(4, base, np.uint32))), ends)


def moved(words: NDArray[np.uint32], share: float) -> NDArray[np.uint32]:
    """Floats that each moved by about this share of themselves."""
    by = np.random.default_rng(1).normal(0, share, words.size)
    return (words.view(np.float32) * (1 + by)).astype(np.float32).view(np.uint32)


@pytest.mark.parametrize(
    ("share", "count", "worth"),
    [(1e-4, 10_000, True), (3.0, 10_000, False), (1e-4, 4096, True), (0.0, 4095, False)],
    ids=["near", "far", "just enough words", "too few words"],
)
def test_a_difference_is_written_where_it_saves_an_eighth(share: float, count: int, worth: bool) -> None:
    base = np.random.default_rng(0).normal(0, 0.02, count).astype(np.float32).view(np.uint32)
    assert is_worth(moved(base, share), base) is worth


@pytest.mark.parametrize("share", [1e-4, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("keep", [32, 16], ids=["as they are", "rounded"])
def test_what_the_sample_says_is_what_coding_saves(share: float, keep: int) -> None:
    mask = np.uint32(0xFFFF_FFFF << 32 - keep & 0xFFFF_FFFF)
    base = np.random.default_rng(0).normal(0, 0.02, 100_000).astype(np.float32).view(np.uint32)
    words = moved(base, share) & mask
    base &= mask
    saved = 8 * (len(encode(words)) - len(encode(words, base=Base(base, bytes(16))))) / words.size
    if abs(saved - 4) > 1:  # near the limit a sample may err
        assert is_worth(words, base) is (saved > 4)
