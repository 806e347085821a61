"""Packing and combining the ranks' vitals."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st

from stormsail.workers.vitals import RankVitals, pack, reduce_rows, token_correction, unpack

CALM = RankVitals(
    loss_sum=250.0,
    square_norm=0.25,
    compute_s=0.1,
    data_s=0.01,
    tokens=100,
    nonfinite_gradients=0,
    nonfinite_state=0,
    first_parameter=-1,
    stop=0,
    step=7,
)


@given(
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**40),
)
def test_packing_keeps_every_bit(loss: float, square: float, count: int, step: int) -> None:
    row = dataclasses.replace(CALM, loss_sum=loss, square_norm=square, nonfinite_gradients=count, step=step)
    assert unpack(pack(row)) == row


def test_a_nan_survives_packing() -> None:
    assert math.isnan(unpack(pack(dataclasses.replace(CALM, loss_sum=math.nan))).loss_sum)


def test_the_loss_is_weighted_by_real_tokens() -> None:
    few = dataclasses.replace(CALM, loss_sum=10.0, tokens=2)
    seen = reduce_rows([CALM, few], nominal_tokens=200)
    assert seen.loss == 260.0 / 102
    assert seen.tokens == 102


def test_the_norm_is_that_of_the_mean_over_real_tokens() -> None:
    half = dataclasses.replace(CALM, tokens=0, square_norm=0.0)
    seen = reduce_rows([CALM, half], nominal_tokens=200)
    assert seen.grad_norm == 0.5 * 2.0


def test_nothing_to_learn_from_gives_no_loss_and_no_division_by_zero() -> None:
    empty = dataclasses.replace(CALM, tokens=0, loss_sum=0.0, square_norm=0.0)
    seen = reduce_rows([empty, empty], nominal_tokens=200)
    assert math.isnan(seen.loss)
    assert seen.grad_norm == 0.0
    assert token_correction(0, 200) == 1.0


def test_one_rank_with_a_non_finite_gradient_is_named() -> None:
    bad = dataclasses.replace(CALM, square_norm=math.inf, nonfinite_gradients=3, first_parameter=5)
    seen = reduce_rows([CALM, bad, CALM], nominal_tokens=300)
    assert seen.nonfinite_gradients == 3
    assert (seen.first_bad_rank, seen.first_bad_parameter) == (1, 5)
    assert seen.grad_norm == math.inf


def test_a_nan_loss_on_one_rank_is_a_nan_loss_for_all() -> None:
    bad = dataclasses.replace(CALM, loss_sum=math.nan, nonfinite_gradients=1)
    assert math.isnan(reduce_rows([CALM, bad], nominal_tokens=200).loss)


def test_a_request_to_stop_on_any_rank_counts() -> None:
    asked = dataclasses.replace(CALM, stop=1)
    assert reduce_rows([CALM, asked], nominal_tokens=200).stop
