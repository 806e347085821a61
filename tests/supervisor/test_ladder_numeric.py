"""The recovery ladder where numbers go bad: alone, with lost processes between, and where a person is to decide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.ladder_run import POLICY, running

from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier
from stormsail.supervisor.ladder import Note, plan_start

# ------------------------------------------------------------------------------------------------ numeric


def test_a_spike_resumes_from_the_newest_good_state_before_its_onset() -> None:
    decision = running().fault(FaultKind.SPIKE, 57, onset=55)
    assert (decision.tier, decision.restore) == (Tier.RESUME, CheckpointRef(1, 30))


def test_a_good_state_from_after_the_onset_is_not_used() -> None:
    assert running().fault(FaultKind.SPIKE, 57, onset=25).restore == CheckpointRef(1, 20)


def test_a_spike_that_comes_back_is_rolled_back_further_with_a_lower_learning_rate() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57, onset=55)
    run.steps(30, 56)
    decision = run.fault(FaultKind.SPIKE, 57, onset=55)
    assert (decision.tier, decision.restore, decision.episode) == (Tier.ROLLBACK, CheckpointRef(1, 20), 1)
    assert decision.lr_event == LrEvent(step=20, factor=0.8, generation=3, released_step=57 + 1 + 50 + 200)


def test_tier_2_lies_far_enough_before_the_onset() -> None:
    run = running(replace(POLICY, rollback_min_steps=40))
    run.fault(FaultKind.SPIKE, 57, onset=55)
    assert run.fault(FaultKind.SPIKE, 57, onset=55).restore == CheckpointRef(1, 10)


def test_tier_2_of_a_young_run_begins_again_and_says_so() -> None:
    run = running(replace(POLICY, rollback_min_steps=100))
    run.fault(FaultKind.SPIKE, 57)
    decision = run.fault(FaultKind.SPIKE, 57)
    assert decision.restore is None
    assert "the run is younger than 100 steps" in decision.reason


def test_tier_3_replays_in_fp32_through_the_last_anomalous_step_and_a_margin() -> None:
    run = running(replace(POLICY, fp32_window_steps=40))
    run.fault(FaultKind.NONFINITE, 57, onset=55)
    run.fault(FaultKind.NONFINITE, 59, onset=56)
    decision = run.fault(FaultKind.NONFINITE, 58, onset=57)
    assert (decision.tier, decision.restore) == (Tier.FP32_REPLAY, CheckpointRef(1, 10))
    assert (decision.precision, decision.fp32_until) == ("fp32", 59 + 1 + 10)
    assert decision.lr_event is None


def test_numbers_that_no_tier_heals_stop_the_run() -> None:
    run = running()
    tiers = [run.fault(FaultKind.NONFINITE, 57).tier for _ in range(4)]
    assert tiers == [Tier.RESUME, Tier.ROLLBACK, Tier.FP32_REPLAY, Tier.EXHAUSTED]
    assert run.decisions[-1].stop_exit_code == 4


def test_the_probation_counts_healthy_steps_past_the_incident() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57)
    run.steps(30, 57 + 49)
    assert run.notes == []
    run.steps(107, 107)
    assert run.notes == [Note("episode.closed", 1, Tier.RESUME)]


def test_a_step_that_is_not_healthy_does_not_count_for_the_probation() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57)
    run.steps(30, 106)
    run.steps(107, 107, healthy=False)
    assert run.state.numeric is not None
    run.steps(108, 108)
    assert run.state.numeric is None


def test_a_recurrence_inside_the_probation_climbs_and_one_after_it_does_not() -> None:
    inside, after = running(), running()
    inside.fault(FaultKind.SPIKE, 57)
    inside.steps(30, 100)
    after.fault(FaultKind.SPIKE, 57)
    after.steps(30, 120)
    assert inside.fault(FaultKind.SPIKE, 101).tier is Tier.ROLLBACK
    assert after.fault(FaultKind.SPIKE, 121).tier is Tier.RESUME


def test_a_recurrence_begins_the_probation_again() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57)
    run.steps(30, 100)
    run.fault(FaultKind.SPIKE, 101)
    run.steps(20, 101 + 49)
    assert run.state.numeric is not None
    run.steps(151, 151)
    assert run.state.numeric is None


def test_a_resume_that_does_not_repeat_is_a_numeric_fault() -> None:
    assert running().fault(FaultKind.RESUME_FAULT, 50).restore == CheckpointRef(1, 30)


def test_a_diagnosis_may_name_the_first_tier() -> None:
    decision = running().fault(FaultKind.SPIKE, 57, mildest=Tier.ROLLBACK)
    assert (decision.tier, decision.restore) == (Tier.ROLLBACK, CheckpointRef(1, 30))


def test_a_diagnosis_never_leads_down_the_ladder() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57, mildest=Tier.ROLLBACK)
    assert run.fault(FaultKind.SPIKE, 57, mildest=Tier.RESUME).tier is Tier.FP32_REPLAY


def test_a_diagnosis_that_leaves_nothing_stops_at_once() -> None:
    decision = running().fault(FaultKind.SPIKE, 57, mildest=Tier.EXHAUSTED)
    assert (decision.stop_exit_code, decision.tried) == (4, False)
    assert "the diagnosis leaves nothing to try" in decision.reason


def test_suspected_samples_stay_left_out() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57, suspects=((640, 656),))
    assert run.fault(FaultKind.PROCESS, 58).skip == ((640, 656),)


# ------------------------------------------------------------------------------------------------ both together


def test_a_lost_process_inside_a_numeric_episode_uses_a_good_state_from_before_the_onset() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57)
    run.steps(30, 70)
    run.saved(60, good=False)
    decision = run.fault(FaultKind.PROCESS, 71)
    assert (decision.tier, decision.restore) == (Tier.RESUME, CheckpointRef(1, 30))


def test_a_lost_process_does_not_climb_the_numeric_ladder() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57)
    run.fault(FaultKind.PROCESS, 40)
    assert run.state.numeric is not None
    assert run.state.numeric.tier is Tier.RESUME
    assert run.fault(FaultKind.SPIKE, 57).tier is Tier.ROLLBACK


def test_deaths_without_progress_inside_a_numeric_episode_come_to_an_end_too() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57)
    tiers = [run.fault(FaultKind.PROCESS, 40).tier for _ in range(4)]
    assert tiers == [Tier.RESUME, Tier.ROLLBACK, Tier.FP32_REPLAY, Tier.EXHAUSTED]


def test_an_fp32_window_survives_a_lost_process() -> None:
    run = running()
    for _ in range(3):
        run.fault(FaultKind.NONFINITE, 57)
    run.steps(0, 30)
    decision = run.fault(FaultKind.PROCESS, 31)
    assert decision.tier is Tier.RESUME
    assert (decision.precision, decision.fp32_until) == ("fp32", 68)


def test_beyond_the_fp32_window_a_resume_computes_in_the_runs_precision() -> None:
    run = running()
    for _ in range(3):
        run.fault(FaultKind.NONFINITE, 57)
    run.steps(0, 140)
    run.saved(120)
    assert run.fault(FaultKind.PROCESS, 141).precision == "bf16"


def test_a_run_in_fp32_has_no_window_to_leave() -> None:
    run = running()
    run.precision = "fp32"
    decisions = [run.fault(FaultKind.NONFINITE, 57) for _ in range(3)]
    assert (decisions[-1].tier, decisions[-1].precision, decisions[-1].fp32_until) == (Tier.FP32_REPLAY, "fp32", None)


# ------------------------------------------------------------------------------------------------ stopping at anomalies


STOPPING = replace(POLICY, stop_on_anomaly=True)


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind.numeric])
def test_a_run_that_is_to_stop_at_anomalies_stops_at_the_first_and_changes_nothing(kind: FaultKind) -> None:
    run = running(STOPPING)
    decision = run.fault(kind, 57, 55)
    assert (decision.tier, decision.stop_exit_code, decision.restore) == (Tier.EXHAUSTED, 4, None)
    assert (decision.lr_events, decision.fp32_until) == ((), None)
    assert "ladder.on_anomaly is `stop`; a person must look" in decision.reason
    assert not decision.tried
    assert len(run.candidates) == 5


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if not kind.numeric])
def test_such_a_run_meets_other_faults_as_any_other(kind: FaultKind) -> None:
    assert running(STOPPING).fault(kind, 57) == running().fault(kind, 57)


def test_a_person_who_lets_it_repair_itself_later_finds_the_whole_ladder() -> None:
    run = running(STOPPING)
    run.fault(FaultKind.SPIKE, 57, 55)
    run.policy = POLICY
    begun = plan_start(run.state, run.candidates, run.policy, run.events, run_precision="bf16")
    assert begun.restore == CheckpointRef(1, 30)  # a good one from before the onset
    run.state = begun.state
    assert run.fault(FaultKind.SPIKE, 57, 55).tier is Tier.ROLLBACK
