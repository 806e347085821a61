"""Counting dropped updates."""

from __future__ import annotations

import pytest

from stormsail.workers.detect.nonfinite import DropState, Lately


def test_a_row_of_drops_remembers_where_it_began() -> None:
    state = DropState().dropped(7).dropped(8).dropped(9)
    assert (state.row, state.first) == (3, 7)


def test_the_first_drop_may_be_at_step_zero() -> None:
    state = DropState().dropped(0).dropped(1)
    assert (state.row, state.first, state.lately.since) == (2, 0, 0)


def after(steps: int, every: int) -> Lately:
    found = Lately()
    for step in range(steps):
        found = found.bad(step) if step % every == 0 else found.good()
    return found


@pytest.mark.parametrize(("every", "many"), [(1, True), (2, True), (4, False), (20, False)])
def test_a_third_of_all_steps_is_too_many(every: int, many: bool) -> None:
    assert after(2000 * every + 1, every).too_many(0.3, 3) == many


def test_a_few_are_never_too_many_and_patience_counts() -> None:
    assert not after(9, 1).too_many(0.3, 3)
    assert after(10, 1).too_many(0.3, 3)
    assert not after(10, 1).too_many(0.3, 11)


def test_what_is_long_over_is_forgotten_to_the_last_bit() -> None:
    state = DropState().dropped(3).dropped(4)
    for _ in range(60):
        state = state.over()
    assert state == DropState()


def test_the_onset_lies_not_further_back_than_the_share_reaches() -> None:
    assert after(2001, 5).onset(2001) == 1961
    assert after(11, 2).onset(10) == 0
