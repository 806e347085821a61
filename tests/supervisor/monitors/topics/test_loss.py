"""Monitored items about the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.monitored import state_of, steps, view

from stormsail.platform.journal_events import Event
from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.loss import LOSS

MADE: dict[str, Any] = {"generation": 1, "parent": None, "fork_step": 0, "reason": "", "owner": ""}
BORN = Event(1, 1e6, "generation.created", 1, 0, 1, MADE)


def wavy(step: int) -> float:
    return 3.0 + 0.01 * (step % 5)


def test_a_calm_loss_is_normal_everywhere() -> None:
    run = view(steps(300, loss=wavy))
    found = {item.name: state_of(LOSS, item.name, run).state for item in LOSS}
    assert found.pop("loss.rank_spread") is State.ABSENT
    assert found.pop("loss.evaluation") is State.ABSENT
    assert set(found.values()) == {State.NORMAL}


@pytest.mark.parametrize("name", ["loss.ratio", "loss.to_best", "loss.robust_z"])
def test_a_spike_is_seen_in_its_step(name: str) -> None:
    run = view(steps(100, loss=lambda step: 10.0 if step == 99 else wavy(step)))
    assert state_of(LOSS, name, run).state is State.DANGER


def test_slow_divergence_is_drift_and_no_spike() -> None:
    run = view(steps(300, loss=lambda step: wavy(step) + max(0, step - 150) * 0.003))
    assert state_of(LOSS, "loss.drift", run).state is State.DANGER
    assert state_of(LOSS, "loss.ratio", run).state is State.NORMAL


def test_noise_is_scatter() -> None:
    run = view(steps(100, loss=lambda step: 1.0 + step % 2))
    assert state_of(LOSS, "loss.scatter", run).state is not State.NORMAL


def evaluated(*losses: float | None, generation: int = 1, first: int = 1, eval_set: str = "a") -> list[Event]:
    data: dict[str, Any] = {"generation": generation, "eval_set": eval_set}
    return [
        Event(number, 1e6 + number, "evaluation.finished", 1, 10 * number, 1, {**data, "loss": loss})
        for number, loss in enumerate(losses, start=first)
    ]


@pytest.mark.parametrize(
    ("losses", "state"),
    [
        ((3.0, 2.0, 2.04), State.NORMAL),
        ((3.0, 2.0, 2.1), State.WARN),
        ((3.0, 2.0, 2.5), State.DANGER),
        ((3.0, 2.0, None), State.DANGER),
    ],
)
def test_an_evaluation_is_measured_by_the_lowest_so_far(losses: tuple[float | None, ...], state: State) -> None:
    run = view(steps(60, loss=wavy), events=[BORN, *evaluated(*losses)])
    assert state_of(LOSS, "loss.evaluation", run).state is state


def test_what_was_rolled_back_is_no_measure() -> None:
    back = replace(BORN, number=3, data={**BORN.data, "generation": 2, "parent": 1, "fork_step": 10})
    events = [BORN, *evaluated(3.0, 1.0), back, *evaluated(2.9, generation=2, first=4)]
    assert state_of(LOSS, "loss.evaluation", view(steps(60, loss=wavy), events=events)).state is State.NORMAL


def test_what_was_lower_over_other_samples_is_no_measure() -> None:
    events = [BORN, *evaluated(3.0, 1.0), *evaluated(2.9, 2.91, first=4, eval_set="b")]
    assert state_of(LOSS, "loss.evaluation", view(steps(60, loss=wavy), events=events)).state is State.NORMAL


def test_flagged_steps_are_counted() -> None:
    run = view(steps(100, flagged=lambda step: step % 10 == 0))
    assert state_of(LOSS, "loss.flagged_share", run).value == pytest.approx(0.1)
