"""What bounds the recovery ladder: how often it may be climbed, and how far the learning rate may be cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.ladder_run import POLICY, Run, running

from stormsail.platform.messages import FaultKind, Tier
from stormsail.supervisor.ladder import Decision, Note

# ------------------------------------------------------------------------------------------------ budgets


def progress_and_die(run: Run, times: int) -> Decision:
    """Do 10 new steps and lose a process, several times."""
    at = 60
    for _ in range(times):
        run.steps(at, at + 9)
        at += 10
        run.fault(FaultKind.PROCESS, at)
    return run.decisions[-1]


def test_the_budget_of_an_hour_bounds_episodes_that_each_look_harmless() -> None:
    run = running()
    decision = progress_and_die(run, 7)
    assert [one.tier for one in run.decisions[:-1]] == [Tier.RESUME] * 6
    assert (decision.tier, decision.stop_exit_code) == (Tier.EXHAUSTED, 4)
    assert "7 episodes within an hour" in decision.reason


def test_episodes_of_an_earlier_hour_do_not_count() -> None:
    run = running()
    progress_and_die(run, 6)
    run.clock_s += 3600
    run.steps(60, 200)
    assert run.fault(FaultKind.PROCESS, 201).tier is Tier.RESUME


def test_the_budget_in_all_bounds_slow_series_too() -> None:
    run = running(replace(POLICY, episodes_total=3, episodes_per_hour=100))
    assert progress_and_die(run, 3).tier is Tier.RESUME
    run.steps(60, 200)
    decision = run.fault(FaultKind.PROCESS, 201)
    assert decision.stop_exit_code == 4
    assert "ladder.episodes_total is 3" in decision.reason


def test_healthy_steps_reset_the_budgets() -> None:
    run = running(replace(POLICY, episodes_total=3))
    progress_and_die(run, 3)
    run.steps(60, 60 + 999)
    assert Note("budgets.reset") in run.notes
    assert run.fault(FaultKind.PROCESS, 1060).tier is Tier.RESUME


def test_steps_with_dropped_updates_do_not_reset_the_budgets() -> None:
    run = running(replace(POLICY, episodes_total=3))
    progress_and_die(run, 3)
    run.steps(60, 60 + 999, healthy=False)
    assert Note("budgets.reset") not in run.notes


# ------------------------------------------------------------------------------------------------ learning rate


def test_a_second_rollback_gives_0_64_at_once() -> None:
    run = running()
    for _ in range(2):
        run.fault(FaultKind.SPIKE, 57)
    run.steps(20, 110)
    run.fault(FaultKind.SPIKE, 115)
    decision = run.fault(FaultKind.SPIKE, 115)
    assert decision.tier is Tier.ROLLBACK
    assert decision.lr_factor == pytest.approx(0.64)


def test_what_was_decided_about_the_learning_rate_survives_a_later_plain_resume() -> None:
    run = running()
    for _ in range(2):
        run.fault(FaultKind.SPIKE, 57)
    run.steps(20, 120)
    run.saved(110)
    decision = run.fault(FaultKind.PROCESS, 121)
    assert (decision.tier, decision.lr_event, decision.lr_factor) == (Tier.RESUME, None, 0.8)


def test_a_recurrence_holds_the_factor_longer() -> None:
    run = running()
    for _ in range(2):
        run.fault(FaultKind.SPIKE, 57)
    run.steps(20, 79)
    decision = run.fault(FaultKind.SPIKE, 80)
    assert decision.tier is Tier.FP32_REPLAY
    assert [event.released_step for event in decision.lr_events] == [80 + 1 + 50 + 200]


def test_at_the_floor_tier_2_counts_as_failed() -> None:
    run = running(replace(POLICY, lr_floor=0.9))
    run.fault(FaultKind.SPIKE, 57)
    assert run.fault(FaultKind.SPIKE, 57).lr_factor == pytest.approx(0.9)
    run.steps(20, 120)
    run.saved(60, 70, 80)
    run.fault(FaultKind.SPIKE, 121)
    decision = run.fault(FaultKind.SPIKE, 121)
    assert decision.tier is Tier.FP32_REPLAY
    assert "tier 2 counts as failed" in decision.reason
    assert run.fault(FaultKind.SPIKE, 121).tier is Tier.EXHAUSTED
