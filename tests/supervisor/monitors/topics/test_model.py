"""Monitored items about the model and its state."""

from __future__ import annotations

from tests.support.monitored import state_of, steps, view

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.model import MODEL

CALM = {"accuracy.tokens": 0.4, "attention.max_logit": 8.0, "activation.max": 20.0, "nonfinite.state": 0.0}


def test_a_calm_model_is_normal_everywhere() -> None:
    run = view(steps(5, values=CALM))
    assert {state_of(MODEL, item.name, run).state for item in MODEL} == {State.NORMAL}


def test_each_item_sees_its_trouble() -> None:
    bad = {"accuracy.tokens": 0.001, "attention.max_logit": 900.0, "activation.max": 7e4, "nonfinite.state": 1.0}
    run = view(steps(5, values=bad))
    assert {state_of(MODEL, item.name, run).state for item in MODEL} == {State.DANGER}
