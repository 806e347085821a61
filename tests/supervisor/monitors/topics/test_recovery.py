"""Monitored items about faults and repairs."""

from __future__ import annotations

import pytest
from tests.support.monitored import happened, state_of, steps, view

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.recovery import RECOVERY

BEGUN = (0.0, "attempt.started", {"attempt": 1, "workers": 2})
WORLD = (5.0, "world.formed", {"world_size": 2, "data_digest": "d"})


def test_a_run_without_faults_is_normal_everywhere_but_for_what_it_has_not_told() -> None:
    run = view(steps(100, step_s=0.98), happened(BEGUN, WORLD), now_s=100.0)
    found = {item.name: state_of(RECOVERY, item.name, run).state for item in RECOVERY}
    assert found.pop("recovery.last_s") is State.ABSENT
    assert set(found.values()) == {State.NORMAL}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("process", "recovery.lost_workers"),
        ("hang", "recovery.hangs"),
        ("spike", "recovery.numeric"),
        ("divergence", "recovery.numeric"),
        ("user_code", "recovery.user_errors"),
    ],
)
def test_faults_are_counted_by_their_kind(kind: str, name: str) -> None:
    run = view(steps(3), happened(BEGUN, (3, "fault.detected", {"kind": kind, "step": 3})))
    found = {item.name: state_of(RECOVERY, item.name, run).value for item in RECOVERY}
    assert found[name] == 1.0
    assert (
        sum(
            found[other] or 0
            for other in found
            if other.split(".")[1] in ("lost_workers", "hangs", "numeric", "user_errors")
        )
        == 1
    )


def test_a_recovery_lasts_from_the_first_fault_to_new_ground() -> None:
    events = happened(
        BEGUN,
        (10, "fault.detected", {"kind": "process"}),
        (15, "fault.detected", {"kind": "process"}),
        (40, "recovery.caught_up", {}),
    )
    assert state_of(RECOVERY, "recovery.last_s", view(events=events)).value == 30.0


def test_steps_done_twice_are_lost_work() -> None:
    run = view(steps(20) + steps(10, first=10), happened(BEGUN))
    assert state_of(RECOVERY, "recovery.lost_work", run).value == pytest.approx(1 / 3)
    assert state_of(RECOVERY, "recovery.productive", run).value == pytest.approx(0.02)


def test_a_smaller_world_shows() -> None:
    run = view(steps(2), happened(BEGUN, (5.0, "world.formed", {"world_size": 1, "data_digest": "d"})))
    assert state_of(RECOVERY, "recovery.world", run).state is State.DANGER
