"""What a monitored item is and how it is read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from tests.support.monitored import START_S, view

from stormsail.supervisor.monitors.item import Item, Limits, State, read
from stormsail.supervisor.monitors.view import Point


def item(*values: float) -> Item:
    points: Sequence[Point] = [Point(START_S + at_s, value) for at_s, value in enumerate(values)]
    return Item("topic.item", "s", "rows: x", "a thing", Limits(5.0, 10.0), "do it", "page", lambda _view: points)


@pytest.mark.parametrize(
    ("value", "state"),
    [(4.9, State.NORMAL), (5.0, State.WARN), (10.0, State.DANGER), (math.nan, State.DANGER), (math.inf, State.DANGER)],
)
def test_large_values_are_bad(value: float, state: State) -> None:
    assert Limits(5.0, 10.0).state(value) is state


@pytest.mark.parametrize(
    ("value", "state"), [(0.95, State.NORMAL), (0.9, State.WARN), (0.5, State.DANGER), (math.nan, State.DANGER)]
)
def test_or_small_ones(value: float, state: State) -> None:
    assert Limits(0.9, 0.5, below=True).state(value) is state


def test_a_state_holds_since_the_first_of_the_last_values_that_had_it() -> None:
    reading = read(item(1.0, 6.0, 1.0, 7.0, 6.0), view())
    assert (reading.value, reading.state, reading.since_s) == (6.0, State.WARN, START_S + 3)


def test_what_the_run_has_not_told_is_absent() -> None:
    reading = read(item(), view())
    assert (reading.value, reading.state, reading.since_s) == (None, State.ABSENT, None)


def test_what_is_known_only_as_it_is_now_has_no_since() -> None:
    assert read(item(6.0), view(now_s=0.0)).since_s is None


def test_a_preset_may_judge_otherwise() -> None:
    assert read(item(6.0, 6.0), view(), Limits(1.0, 2.0)).state is State.DANGER


def test_what_is_normal_is_told_in_words() -> None:
    assert Limits(5.0, 10.0).normal_text == "below 5"
    assert Limits(0.9, 0.5, below=True).normal_text == "above 0.9"
    assert Limits(5.0, 10.0, normal="2 to 4").normal_text == "2 to 4"
    assert item().runbook == "docs/runbook.md#page"
