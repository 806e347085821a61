"""The learning rate of a step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.messages import LrEvent
from stormsail.workers.schedule import learning_rate, lr_factor, scheduled_lr


def planned(step: int) -> float:
    return scheduled_lr(step, peak=1e-3, warmup_steps=20, total_steps=120, min_ratio=0.1)


def held(step: int, factor: float = 0.8, released_step: int | None = None) -> LrEvent:
    return LrEvent(step=step, factor=factor, generation=2, released_step=released_step)


def test_the_first_step_of_the_warm_up_already_learns() -> None:
    assert planned(0) == pytest.approx(1e-3 / 20)


def test_the_warm_up_ends_at_the_peak() -> None:
    assert planned(19) == 1e-3


def test_the_cosine_begins_at_the_peak() -> None:
    assert planned(20) == 1e-3


def test_the_cosine_is_half_way_down_in_the_middle() -> None:
    assert planned(70) == pytest.approx(1e-3 * 0.55)


def test_the_cosine_ends_at_the_least_share_of_the_peak() -> None:
    assert planned(120) == pytest.approx(1e-4)


def test_beyond_its_end_the_schedule_stays_where_it_is() -> None:
    assert planned(10_000) == planned(120)


def test_a_schedule_without_warm_up_begins_at_the_peak() -> None:
    assert scheduled_lr(0, peak=1.0, warmup_steps=0, total_steps=10, min_ratio=0.0) == 1.0


def test_a_schedule_that_is_all_warm_up_has_no_cosine_to_divide_by() -> None:
    assert scheduled_lr(5, peak=1.0, warmup_steps=5, total_steps=5, min_ratio=0.5) == 1.0


@given(st.integers(0, 500), st.integers(0, 99), st.integers(100, 300), st.floats(0.0, 1.0))
def test_the_schedule_never_leaves_its_range(step: int, warmup: int, total: int, ratio: float) -> None:
    lr = scheduled_lr(step, peak=1.0, warmup_steps=warmup, total_steps=total, min_ratio=ratio)
    least = min(ratio, 1 / warmup if warmup else 1.0)
    assert least - 1e-12 <= lr <= 1.0 + 1e-12


def test_without_events_the_factor_is_exactly_one() -> None:
    assert lr_factor(7, (), floor=0.5, ramp_steps=10) == 1.0


@pytest.mark.parametrize(
    ("step", "factor"),
    [(39, 1.0), (40, 0.8), (99, 0.8), (100, 0.8), (150, 0.9), (199, 0.998), (200, 1.0), (5000, 1.0)],
)
def test_an_event_applies_from_its_step_is_held_and_ramps_back(step: int, factor: float) -> None:
    events = (held(40, released_step=100),)
    assert lr_factor(step, events, floor=0.5, ramp_steps=100) == pytest.approx(factor, abs=1e-12)


def test_after_the_ramp_the_factor_is_exactly_one() -> None:
    assert lr_factor(200, (held(40, released_step=100),), floor=0.5, ramp_steps=100) == 1.0


def test_an_event_that_was_never_released_is_held_for_ever() -> None:
    assert lr_factor(10**9, (held(40),), floor=0.5, ramp_steps=1) == 0.8


def test_events_multiply() -> None:
    assert lr_factor(60, (held(40), held(60)), floor=0.5, ramp_steps=1) == pytest.approx(0.64)


def test_the_product_stops_at_the_floor() -> None:
    assert lr_factor(60, (held(1), held(2), held(3), held(4)), floor=0.5, ramp_steps=1) == 0.5


def test_the_learning_rate_is_the_schedule_times_the_factor() -> None:
    lr = learning_rate(
        70,
        (held(40),),
        peak=1e-3,
        warmup_steps=20,
        total_steps=120,
        min_ratio=0.1,
        floor=0.5,
        ramp_steps=10,
    )
    assert lr == 0.8 * planned(70)


events_lists = st.lists(
    st.builds(
        LrEvent,
        step=st.integers(0, 300),
        factor=st.floats(0.01, 1.0),
        generation=st.integers(1, 9),
        released_step=st.none() | st.integers(0, 600),
    ),
    max_size=6,
)


@given(st.integers(0, 2000), events_lists, st.floats(0.0, 1.0), st.integers(1, 1000))
def test_the_factor_is_never_below_the_floor_nor_above_one(
    step: int, events: list[LrEvent], floor: float, ramp_steps: int
) -> None:
    assert floor <= lr_factor(step, events, floor=floor, ramp_steps=ramp_steps) <= 1.0


@given(st.integers(0, 2000), events_lists)
def test_the_order_of_events_does_not_matter(step: int, events: list[LrEvent]) -> None:
    one = lr_factor(step, events, floor=0.0, ramp_steps=50)
    other = lr_factor(step, events[::-1], floor=0.0, ramp_steps=50)
    assert math.isclose(one, other, rel_tol=1e-12)
