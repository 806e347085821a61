"""When a trial may be ended early."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.stopping import grace_percent, rung_reached, rungs

Make = Callable[..., SweepConfig]


def test_nothing_is_ended_before_three_warm_ups_or_two_fifths(make_sweep: Make) -> None:
    for warmups, control, expected in (
        ([0.0], 0.0, 40),
        ([0.05, 0.2], 0.0, 60),
        ([0.0], 0.2, 60),
        ([0.5], 0.0, 100),
    ):
        sweep = make_sweep(space={"warmup": warmups}, control={"warmup": control})
        assert grace_percent(sweep) == expected


def test_a_warm_up_of_a_third_leaves_no_rung() -> None:
    assert rungs(100) == ()
    assert rungs(40) == (40, 80)
    assert rungs(60) == (60,)


@given(st.integers(1, 400), st.integers(40, 100))
def test_every_rung_is_reached_at_most_once_and_not_before_its_time(steps: int, grace: int) -> None:
    marks = rungs(grace)
    reached = [(step, mark) for step in range(1, steps + 1) if (mark := rung_reached(step, steps, marks)) is not None]
    assert len({mark for _, mark in reached}) == len(reached) <= len(marks)
    assert all(100 * step >= mark * steps for step, mark in reached)
    if steps >= 100:
        assert [mark for _, mark in reached] == list(marks)
