"""Monitored items about updates and learning rate."""

from __future__ import annotations

import pytest
from tests.support.monitored import state_of, steps, view

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.optimizer import OPTIMIZER


def test_a_calm_run_is_normal_everywhere() -> None:
    run = view(steps(50, values={"update.rms": 0.2, "loss_scale": 1.0, "updates.overflowed": 0.0}))
    assert {state_of(OPTIMIZER, item.name, run).state for item in OPTIMIZER} == {State.NORMAL}


@pytest.mark.parametrize(("factor", "state"), [(1.0, State.NORMAL), (0.8, State.WARN), (0.5, State.DANGER)])
def test_what_the_ladder_left_of_the_rate_is_told(factor: float, state: State) -> None:
    assert state_of(OPTIMIZER, "optimizer.lr_factor", view(steps(3, lr_factor=factor))).state is state


def test_a_loss_scale_that_falls_and_an_update_that_was_refused_are_told() -> None:
    run = view(steps(3, values={"loss_scale": 0.25, "updates.overflowed": 2.0}))
    assert state_of(OPTIMIZER, "optimizer.loss_scale", run).state is State.DANGER
    assert state_of(OPTIMIZER, "optimizer.overflowed", run).value == 2.0


def test_updates_dropped_in_a_row_are_counted_to_the_end() -> None:
    run = view(steps(10, outcome=lambda step: "dropped" if step in (2, 3, 8, 9) else "applied"))
    assert state_of(OPTIMIZER, "optimizer.dropped_in_a_row", run).value == 2.0
    assert state_of(OPTIMIZER, "optimizer.skipped_share", run).value == pytest.approx(0.4)


def test_an_fp32_replay_shows() -> None:
    rows = steps(50) + steps(50, first=50, precision="fp32")
    assert state_of(OPTIMIZER, "optimizer.other_precision", view(rows)).value == pytest.approx(0.5)
    assert state_of(OPTIMIZER, "optimizer.other_precision", view()).state is State.ABSENT
