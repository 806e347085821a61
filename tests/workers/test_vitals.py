"""Packing and combining the ranks' vitals."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.workers.vitals import RankVitals, Times, Vitals, pack, token_correction, unpack

CALM = RankVitals(
    loss_sum=250.0,
    squares=(0.09, 0.16),
    tokens=100,
    nonfinite_gradients=0,
    nonfinite_state=0,
    first_parameter=-1,
    stop=0,
    step=7,
)


def combine(*ranks: RankVitals, nominal_tokens: int = 200) -> Vitals:
    return unpack(np.stack([pack(rank) for rank in ranks]), nominal_tokens=nominal_tokens)


@given(
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**40),
)
def test_packing_keeps_every_bit(loss: float, square: float, count: int, step: int) -> None:
    row = dataclasses.replace(CALM, loss_sum=loss, squares=(square, 1.0), plan=count, step=step)
    seen = combine(row)
    assert seen.floats("loss_sum").tolist() == [loss]
    assert seen.grouped("squares").tolist() == [[square, 1.0]]
    assert (int(seen.ints("plan")[0]), int(seen.ints("step")[0])) == (count, step)


def test_the_smallest_loss_scale_and_every_refusal_are_seen() -> None:
    seen = combine(CALM, dataclasses.replace(CALM, loss_scale=0.5, overflowed=1))
    assert seen.floats("loss_scale").tolist() == [1.0, 0.5]
    assert seen.ints("overflowed").tolist() == [0, 1]


def test_every_time_comes_back_under_its_name() -> None:
    times = Times(*(float(index) for index in range(1, 10)))
    seen = combine(dataclasses.replace(CALM, times=times))
    for name, value in dataclasses.asdict(times).items():
        assert seen.floats(name).tolist() == [value]


def test_rows_are_equally_long_whatever_was_sampled() -> None:
    sampled = dataclasses.replace(
        CALM, activations=(1.0, 2.0), attention=(3.0, math.nan), update_squares=(4.0, 5.0), correct=9, zeros=1
    )
    assert pack(sampled).shape == pack(CALM).shape
    seen = combine(sampled)
    assert seen.grouped("activations").tolist() == [[1.0, 2.0]]
    assert np.isnan(combine(CALM).grouped("activations")).all()


def test_a_nan_survives_packing() -> None:
    assert math.isnan(combine(dataclasses.replace(CALM, loss_sum=math.nan)).floats("loss_sum")[0])


def test_the_loss_is_weighted_by_real_tokens() -> None:
    few = dataclasses.replace(CALM, loss_sum=10.0, tokens=2)
    seen = combine(CALM, few)
    assert seen.loss == 260.0 / 102
    assert seen.tokens == 102
    assert seen.rank_losses.tolist() == [2.5, 5.0]


def test_the_norm_is_that_of_the_mean_over_real_tokens() -> None:
    half = dataclasses.replace(CALM, tokens=0, squares=(0.0, 0.0))
    seen = combine(CALM, half)
    assert seen.grad_norm == 0.5 * 2.0
    assert seen.group_norms == pytest.approx((0.3 * 2.0, 0.4 * 2.0))


def test_nothing_to_learn_from_gives_no_loss_and_no_division_by_zero() -> None:
    empty = dataclasses.replace(CALM, tokens=0, loss_sum=0.0, squares=(0.0, 0.0))
    seen = combine(empty, empty)
    assert math.isnan(seen.loss)
    assert seen.grad_norm == 0.0
    assert token_correction(0, 200) == 1.0


def test_one_rank_with_a_non_finite_gradient_is_named() -> None:
    bad = dataclasses.replace(CALM, squares=(math.inf, 1.0), nonfinite_gradients=3, first_parameter=5)
    seen = combine(CALM, bad, CALM, nominal_tokens=300)
    assert seen.nonfinite_gradients == 3
    assert (seen.first_bad_rank, seen.first_bad_parameter) == (1, 5)
    assert seen.grad_norm == math.inf


def test_a_nan_loss_on_one_rank_is_a_nan_loss_for_all() -> None:
    bad = dataclasses.replace(CALM, loss_sum=math.nan, nonfinite_gradients=1)
    assert math.isnan(combine(CALM, bad).loss)


SPREAD = dataclasses.replace(CALM, squares=(math.inf, 1.0), nonfinite_gradients=40, first_parameter=2)


@pytest.mark.parametrize("origin", [0, 1, 2])
def test_a_nan_that_reduction_has_spread_is_that_of_the_rank_whose_loss_it_was(origin: int) -> None:
    ranks = [dataclasses.replace(SPREAD, loss_sum=math.nan if rank == origin else 200.0) for rank in range(3)]
    assert combine(*ranks, nominal_tokens=300).first_bad_rank == origin


def test_a_nan_that_reduction_put_elsewhere_is_that_of_the_rank_that_computed_it() -> None:
    owner = dataclasses.replace(CALM, squares=(math.inf, 1.0), nonfinite_gradients=1, first_parameter=2)
    seen = combine(owner, dataclasses.replace(CALM, own_bad=1), nominal_tokens=200)
    assert (seen.first_bad_rank, seen.first_bad_parameter) == (1, 2)


def test_a_bad_weight_accuses_its_owner_though_every_loss_is_nan() -> None:
    spread = dataclasses.replace(SPREAD, loss_sum=math.nan)
    assert combine(spread, dataclasses.replace(spread, nonfinite_state=1)).first_bad_rank == 1


def test_what_all_ranks_show_alike_accuses_nobody_and_still_names_the_parameter() -> None:
    seen = combine(SPREAD, dataclasses.replace(SPREAD, first_parameter=7))
    assert (seen.first_bad_rank, seen.first_bad_parameter) == (-1, 2)
    assert combine(SPREAD).first_bad_rank == 0


def test_a_request_to_stop_on_any_rank_counts() -> None:
    assert combine(CALM, dataclasses.replace(CALM, stop=1)).stop
    assert not combine(CALM, CALM).stop


def test_batch_checksums_add_up_and_stay_positive() -> None:
    seen = combine(dataclasses.replace(CALM, batch=2**62), dataclasses.replace(CALM, batch=2**62 + 5))
    assert seen.batch == 5


def test_ranks_with_another_plan_are_named() -> None:
    assert combine(CALM, CALM, dataclasses.replace(CALM, plan=9)).disagreeing == (2,)
    assert combine(CALM, CALM).disagreeing == ()


def test_who_comes_last_waits_least_and_waiting_is_no_cost_of_watching() -> None:
    early = dataclasses.replace(CALM, times=Times(vitals_s=0.002, exchange_s=0.5, share_s=0.001))
    late = dataclasses.replace(CALM, times=Times(vitals_s=0.001, exchange_s=0.003, share_s=0.4))
    seen = combine(early, late)
    assert seen.waits_s.tolist() == pytest.approx([0.497, 0.0])
    assert seen.watching_s == pytest.approx(0.002 + 0.003 + 0.001)


def test_the_cost_of_a_sample_is_that_of_the_slowest_rank_and_none_without_one() -> None:
    dear, cheap = (dataclasses.replace(CALM, times=Times(sample_s=cost)) for cost in (0.2, 0.1))
    assert combine(dear, cheap).sample_s == 0.2
    assert combine(CALM, CALM).sample_s is None
