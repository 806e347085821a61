"""Monitored items about the gradient."""

from __future__ import annotations

import math

import pytest
from tests.support.monitored import state_of, steps, view

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.gradient import GRADIENT

CALM = {"nonfinite.gradients": 0.0, "norm.embed": 0.3, "norm.blocks.0": 0.4, "norm.zero_share": 0.01}


def test_a_calm_gradient_is_normal_everywhere() -> None:
    run = view(steps(100, values=CALM))
    assert {state_of(GRADIENT, item.name, run).state for item in GRADIENT} == {State.NORMAL}


def test_an_explosion_is_seen_by_all_that_look_at_the_norm() -> None:
    run = view(steps(60, grad_norm=lambda step: 5000.0 if step == 59 else 1.0))
    for name in ("gradient.norm", "gradient.ratio", "gradient.norm_max", "gradient.clip_factor"):
        assert state_of(GRADIENT, name, run).state is State.DANGER


def test_one_norm_that_is_not_finite_does_not_hide_the_mean() -> None:
    run = view(steps(60, grad_norm=lambda step: math.inf if step == 20 else 1.0))
    assert state_of(GRADIENT, "gradient.norm_ema", run).value == pytest.approx(1.0)


def test_a_vanishing_gradient_is_seen() -> None:
    assert state_of(GRADIENT, "gradient.norm_min", view(steps(5, grad_norm=1e-9))).state is State.DANGER


def test_what_was_clipped_and_by_how_much_is_told() -> None:
    run = view(steps(100, grad_norm=lambda step: 2.0 if step % 2 else 1.0, clipped_norm=1.0))
    assert state_of(GRADIENT, "gradient.clipped_share", run).value == pytest.approx(0.5)
    assert state_of(GRADIENT, "gradient.clip_factor", run).value == pytest.approx(0.5)


def test_a_step_without_an_update_was_not_clipped() -> None:
    run = view(steps(3, outcome="dropped", clipped_norm=0.0))
    assert state_of(GRADIENT, "gradient.clip_factor", run).state is State.ABSENT


def test_the_layer_in_front_is_told_by_its_share_of_the_norm() -> None:
    run = view(steps(1, values={**CALM, "norm.blocks.0": 400.0}))
    assert state_of(GRADIENT, "gradient.largest_layer", run).state is State.DANGER


def test_the_mean_of_the_norm_is_slow() -> None:
    run = view(steps(100, grad_norm=lambda step: 101.0 if step == 99 else 1.0))
    assert state_of(GRADIENT, "gradient.norm_ema", run).value == pytest.approx(2.0)
