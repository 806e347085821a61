"""Monitored items about the data."""

from __future__ import annotations

import pytest
from tests.support.monitored import state_of, steps, view

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.data import DATA
from stormsail.supervisor.record import Record


def test_good_data_are_normal_everywhere() -> None:
    run = view(steps(50, batch=lambda step: step + 1, values={"time.data_s": 0.001}))
    assert {state_of(DATA, item.name, run).state for item in DATA} == {State.NORMAL}


def test_a_batch_that_comes_again_at_another_step_is_counted_and_a_step_done_again_is_not() -> None:
    rows = steps(20, batch=lambda step: step % 15 + 1) + steps(5, first=15, batch=lambda step: step % 15 + 1)
    assert state_of(DATA, "data.repeated_batches", view(rows)).value == 5.0


def test_padding_and_empty_batches_show() -> None:
    run = view(
        steps(20, tokens=lambda step: 500 if step == 19 else 2048, outcome=lambda s: "empty" if s == 3 else "applied")
    )
    assert state_of(DATA, "data.tokens", run).state is State.DANGER
    assert state_of(DATA, "data.empty_share", run).value == pytest.approx(0.05)


def test_samples_that_are_left_out_are_counted() -> None:
    run = view(steps(2), record=Record(skip=((0, 16), (32, 40))))
    assert state_of(DATA, "data.skipped_samples", run).value == 24.0
