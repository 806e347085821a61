"""Monitored items about the loss."""

from __future__ import annotations

import pytest
from tests.support.monitored import state_of, steps, view

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.loss import LOSS


def wavy(step: int) -> float:
    return 3.0 + 0.01 * (step % 5)


def test_a_calm_loss_is_normal_everywhere() -> None:
    run = view(steps(300, loss=wavy))
    found = {item.name: state_of(LOSS, item.name, run).state for item in LOSS}
    assert found.pop("loss.rank_spread") is State.ABSENT
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


def test_flagged_steps_are_counted() -> None:
    run = view(steps(100, flagged=lambda step: step % 10 == 0))
    assert state_of(LOSS, "loss.flagged_share", run).value == pytest.approx(0.1)
