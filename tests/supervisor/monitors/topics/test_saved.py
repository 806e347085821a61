"""Monitored items about saved state."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.monitored import happened, state_of, steps, view
from tests.support.run_kit import LIMIT_S

from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.topics.saved import SAVED

BORN: tuple[float, str, dict[str, Any]] = (
    0.0,
    "generation.created",
    {"generation": 1, "parent": None, "fork_step": 0, "reason": "start", "owner": "me"},
)


def saved(at_s: float, step: int, **more: Any) -> tuple[float, str, dict[str, Any]]:
    data = {"generation": 1, "step": step, "bytes": 1000, "took_s": 1.0, "digest": "d", "finite": True, **more}
    return (at_s, "checkpoint.committed", data)


def good(at_s: float, step: int) -> tuple[float, str, dict[str, Any]]:
    return (at_s, "checkpoint.good", {"generation": 1, "step": step})


def missed(at_s: float, step: int, **more: Any) -> tuple[float, str, dict[str, Any]]:
    return (at_s, "checkpoint.missed", {"generation": 1, "step": step, "why": "w", **more})


CALM = (BORN, saved(10, 10), good(13, 10), saved(20, 20), good(23, 20), saved(30, 30))


def test_a_run_that_saves_in_time_is_normal_everywhere() -> None:
    restored = (1.0, "state.restored", {"took_s": 0.2})
    run = view(steps(32), happened(BORN, restored, *CALM[1:]), now_s=33.0)
    assert {item.name: state_of(SAVED, item.name, run).state for item in SAVED if item.name} == {
        item.name: State.NORMAL for item in SAVED
    }


def test_what_a_fault_would_cost_is_told_in_intervals() -> None:
    run = view(steps(100), happened(*CALM))
    assert state_of(SAVED, "state.behind", run).value == 7.0
    assert state_of(SAVED, "state.good_behind", run).value == pytest.approx(7.8)


def test_before_the_first_checkpoint_all_steps_count() -> None:
    assert state_of(SAVED, "state.behind", view(steps(40), happened(BORN))).value == 4.0
    assert state_of(SAVED, "state.age_s", view(steps(40), happened(BORN))).state is State.ABSENT


def test_missed_saves_are_counted_in_a_row_and_as_a_share() -> None:
    run = view(steps(60), happened(*CALM, missed(40, 40), missed(50, 50), missed(60, 60)))
    assert state_of(SAVED, "state.missed_in_a_row", run).state is State.DANGER
    assert state_of(SAVED, "state.missed_share", run).value == pytest.approx(0.5)


def test_a_state_with_bad_numbers_is_counted_whether_it_was_kept_or_not() -> None:
    run = view(steps(50), happened(*CALM, saved(40, 40, finite=False), missed(50, 50, finite=False)))
    assert state_of(SAVED, "state.nonfinite", run).value == 2.0


def test_a_slow_store_shows() -> None:
    run = view(steps(50), happened(*CALM, saved(40, 40, took_s=0.95 * LIMIT_S, bytes=5000)))
    assert state_of(SAVED, "state.save_s", run).state is State.DANGER
    assert state_of(SAVED, "state.save_share", run).state is State.DANGER
    assert state_of(SAVED, "state.size", run).state is State.DANGER
