"""Counting dropped updates."""

from __future__ import annotations

from stormsail.workers.detect.nonfinite import DropState


def test_a_row_of_drops_remembers_where_it_began() -> None:
    state = DropState().dropped(7).dropped(8).dropped(9)
    assert (state.row, state.first) == (3, 7)


def test_the_first_drop_may_be_at_step_zero() -> None:
    assert DropState().dropped(0).dropped(1) == DropState(2, 0)
