"""Monitored items about what a run depends on."""

from __future__ import annotations

import pytest
from tests.support.monitored import happened, state_of, steps, view

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.services import SERVICES

BEGUN = (0.0, "attempt.started", {"attempt": 1, "workers": 2})


def test_a_run_that_has_all_it_needs_is_normal_everywhere() -> None:
    run = view(steps(5), happened(BEGUN))
    assert {state_of(SERVICES, item.name, run).state for item in SERVICES} == {State.NORMAL}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("store.away", "services.store_away_s"),
        ("tracking.away", "services.tracking_away_s"),
        ("resources.waiting", "services.waiting_s"),
    ],
)
def test_what_is_away_shows_with_its_time(kind: str, name: str) -> None:
    run = view(steps(5), happened(BEGUN, (10, kind, {})), now_s=100.0)
    assert state_of(SERVICES, name, run).value == 90.0


def test_a_slow_start_and_lost_alerts_show() -> None:
    run = view(steps(5, first=700), happened(BEGUN, (5, "alert.failed", {}), (6, "throughput.collapsed", {})))
    assert state_of(SERVICES, "services.start_s", run).state is State.DANGER
    assert state_of(SERVICES, "services.alerts_lost", run).state is State.WARN
    assert state_of(SERVICES, "services.slow", run).value == 1.0
