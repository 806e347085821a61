"""Monitored items about speed."""

from __future__ import annotations

from typing import Any

from tests.support.monitored import happened, state_of, steps, view

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.speed import SPEED

CALM = {
    "time.compute_s": 0.08,
    "time.comm_s": 0.01,
    "time.wait_s": 0.002,
    "time.update_s": 0.01,
    "sampling.share": 0.004,
    "time.slowest_ratio": 1.05,
    "rank.outlier_z": 0.5,
}


def test_an_even_run_is_normal_everywhere() -> None:
    run = view(steps(60, values=CALM), now_s=60.0)
    assert {state_of(SPEED, item.name, run).state for item in SPEED} == {State.NORMAL}


def test_a_run_that_became_slow_shows() -> None:
    run = view(steps(120, step_s=lambda step: 0.5 if step >= 90 else 0.1))
    assert state_of(SPEED, "speed.tokens_per_s", run).state is State.DANGER
    assert state_of(SPEED, "speed.step_s", run).state is State.DANGER


def test_uneven_steps_show_as_jitter() -> None:
    run = view(steps(100, step_s=lambda step: 1.0 if step % 10 == 0 else 0.1))
    assert state_of(SPEED, "speed.jitter", run).state is State.DANGER


def test_a_run_that_stands_still_shows_while_it_is_not_over() -> None:
    rows = steps(10)
    assert state_of(SPEED, "speed.since_step_s", view(rows, now_s=500.0)).state is State.DANGER
    evaluating = happened((10, "evaluation.begun", {"step": 10}))
    limit: dict[str, Any] = {"eval": {"timeout_s": 300.0}}
    assert state_of(SPEED, "speed.since_step_s", view(rows, evaluating, now_s=309.0, **limit)).state is State.NORMAL
    assert state_of(SPEED, "speed.since_step_s", view(rows, evaluating, now_s=311.0, **limit)).state is State.DANGER
    found = {"step": 10, "loss": None}
    evaluated = [*evaluating, *happened((300, "evaluation.finished", found))]
    assert state_of(SPEED, "speed.since_step_s", view(rows, evaluated, now_s=320.0)).state is State.NORMAL
    assert state_of(SPEED, "speed.since_step_s", view(rows, evaluated, now_s=380.0)).state is State.WARN
    over = happened((10, "run.finished", {"exit_code": 0}))
    assert state_of(SPEED, "speed.since_step_s", view(rows, over, now_s=500.0)).state is State.NORMAL
