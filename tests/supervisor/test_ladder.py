"""The recovery ladder: tables of its rules, and what must hold for every history."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier
from stormsail.supervisor.ladder import (
    CandidateCheckpoint,
    Decision,
    Fault,
    LadderPolicy,
    LadderState,
    Note,
    decide,
    observe,
    plan_start,
)
from stormsail.workers.schedule import lr_factor

POLICY = LadderPolicy(
    probation_steps=50,
    episodes_per_hour=6,
    episodes_total=50,
    reset_after_steps=1000,
    rollback_min_steps=10,
    rollback_lr_factor=0.8,
    fp32_window_steps=100,
    fp32_margin_steps=10,
    lr_floor=0.5,
    lr_hold_steps=200,
    lr_ramp_steps=1000,
)


Question = tuple[LadderState, Fault, tuple[CandidateCheckpoint, ...], tuple[LrEvent, ...], int]


@dataclass
class Run:
    """A run that consists of nothing but its ladder, its checkpoints and its events."""

    policy: LadderPolicy = POLICY
    precision: str = "bf16"
    state: LadderState = field(default_factory=LadderState)
    candidates: tuple[CandidateCheckpoint, ...] = ()
    events: tuple[LrEvent, ...] = ()
    generation: int = 1
    clock_s: float = 1000.0
    notes: list[Note] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)

    def steps(self, first: int, last: int, *, healthy: bool = True) -> None:
        """Complete the steps first to last, both included."""
        for step in range(first, last + 1):
            self.state, notes = observe(self.state, step, healthy, self.policy)
            self.notes += notes

    def saved(self, *steps: int, good: bool = True) -> None:
        """Commit checkpoints."""
        self.candidates += tuple(CandidateCheckpoint(CheckpointRef(self.generation, step), good) for step in steps)

    def fault(
        self,
        kind: FaultKind,
        step: int,
        onset: int | None = None,
        *,
        signature: str = "",
        mildest: Tier = Tier.RESUME,
        suspects: tuple[tuple[int, int], ...] = (),
    ) -> Decision:
        """Meet a fault, take the decision, and drop the checkpoints that it supersedes."""
        onset = step if onset is None else onset
        fault = Fault(kind, step, onset, self.clock_s, signature=signature, mildest=mildest, suspects=suspects)
        self.asked.append((self.state, fault, self.candidates, self.events, self.generation + 1))
        decision = decide(
            self.state,
            fault,
            self.candidates,
            self.policy,
            self.events,
            run_precision=self.precision,
            generation=self.generation + 1,
        )
        self.clock_s += 60.0
        self.state = decision.state
        self.events = decision.lr_events
        if decision.stop_exit_code is None:
            self.generation += 1
            fork = decision.restore.step if decision.restore else 0
            self.candidates = tuple(c for c in self.candidates if c.ref.step <= fork)
        self.decisions.append(decision)
        return decision


def running(policy: LadderPolicy = POLICY) -> Run:
    """A run at step 57 with good checkpoints up to 30 and two younger ones."""
    run = Run(policy=policy)
    run.steps(0, 56)
    run.saved(10, 20, 30)
    run.saved(40, 50, good=False)
    return run


# -------------------------------------------------------------------------------------------- stopping at anomalies

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


# ------------------------------------------------------------------------------------------------ infrastructure


def test_a_lost_process_resumes_from_the_newest_commit_good_or_not() -> None:
    decision = running().fault(FaultKind.PROCESS, 57)
    assert (decision.tier, decision.restore, decision.stop_exit_code) == (Tier.RESUME, CheckpointRef(1, 50), None)


def test_a_resume_leaves_learning_rate_and_precision_alone() -> None:
    decision = running().fault(FaultKind.PROCESS, 57)
    assert (decision.lr_event, decision.lr_events, decision.lr_factor) == (None, (), 1.0)
    assert (decision.precision, decision.fp32_until) == ("bf16", None)


def test_before_the_first_checkpoint_a_resume_begins_at_the_initial_state_and_says_so() -> None:
    run = Run()
    run.steps(0, 3)
    decision = run.fault(FaultKind.PROCESS, 4)
    assert decision.restore is None
    assert "the initial state [there is no checkpoint]" in decision.reason


def test_a_hang_is_answered_like_a_lost_process() -> None:
    assert running().fault(FaultKind.HANG, 57).tier is Tier.RESUME


def test_two_unrelated_node_deaths_never_cut_the_learning_rate() -> None:
    run = running()
    run.fault(FaultKind.PROCESS, 57)
    run.steps(50, 58)
    decision = run.fault(FaultKind.PROCESS, 59)
    assert (decision.tier, decision.episode, decision.lr_factor) == (Tier.RESUME, 2, 1.0)


def test_a_second_death_without_progress_climbs() -> None:
    run = running()
    run.fault(FaultKind.PROCESS, 57)
    run.steps(50, 56)
    decision = run.fault(FaultKind.PROCESS, 57)
    assert (decision.tier, decision.episode) == (Tier.ROLLBACK, 1)


def test_repeating_the_step_of_the_fault_is_not_yet_progress() -> None:
    run = running()
    run.fault(FaultKind.PROCESS, 57)
    run.steps(50, 57)
    assert run.fault(FaultKind.PROCESS, 58).tier is Tier.ROLLBACK


def test_tier_2_goes_one_checkpoint_further_back_and_cuts_the_learning_rate() -> None:
    run = running()
    run.fault(FaultKind.PROCESS, 57)
    decision = run.fault(FaultKind.PROCESS, 57)
    assert decision.restore == CheckpointRef(1, 40)
    assert decision.lr_event == LrEvent(step=40, factor=0.8, generation=3, released_step=57 + 1 + 50 + 200)
    assert decision.lr_events == (decision.lr_event,)
    assert decision.lr_factor == 0.8


def test_tier_3_for_a_lost_process_is_an_fp32_replay_from_a_good_state() -> None:
    run = running(replace(POLICY, fp32_window_steps=30))
    for _ in range(2):
        run.fault(FaultKind.PROCESS, 57)
    decision = run.fault(FaultKind.PROCESS, 57)
    assert (decision.tier, decision.restore) == (Tier.FP32_REPLAY, CheckpointRef(1, 20))
    assert (decision.precision, decision.fp32_until) == ("fp32", 57 + 1 + 10)


def test_after_tier_3_the_run_stops_for_a_person_with_exit_code_4() -> None:
    run = running()
    for _ in range(3):
        run.fault(FaultKind.PROCESS, 57)
    decision = run.fault(FaultKind.PROCESS, 57)
    assert (decision.tier, decision.stop_exit_code, decision.tried) == (Tier.EXHAUSTED, 4, True)
    assert "every tier was tried in episode 1" in decision.reason


def test_an_infrastructure_episode_closes_with_the_first_new_step() -> None:
    run = running()
    run.fault(FaultKind.PROCESS, 57)
    run.steps(50, 57)
    assert run.notes == []
    run.steps(58, 58)
    assert run.notes == [Note("episode.closed", 1, Tier.RESUME)]
    assert run.state.infra is None


def test_a_process_that_dies_while_it_starts_climbs_too() -> None:
    run = Run()
    run.saved(5000)
    tiers = [run.fault(FaultKind.PROCESS, -1).tier for _ in range(4)]
    assert tiers == [Tier.RESUME, Tier.ROLLBACK, Tier.FP32_REPLAY, Tier.EXHAUSTED]


def test_a_late_report_of_the_step_does_not_hide_what_was_reached() -> None:
    run = running()
    run.fault(FaultKind.PROCESS, 52)
    run.steps(50, 56)
    assert run.fault(FaultKind.PROCESS, 57).tier is Tier.ROLLBACK


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


# ------------------------------------------------------------------------------------------------ user code


def test_an_error_of_the_users_code_before_the_first_step_stops_at_once() -> None:
    decision = Run().fault(FaultKind.USER_CODE, -1, signature="TypeError: x")
    assert (decision.tier, decision.episode, decision.stop_exit_code) == (None, None, 6)


def test_an_error_of_the_users_code_is_tried_again_once() -> None:
    assert running().fault(FaultKind.USER_CODE, 57, signature="OSError: y").tier is Tier.RESUME


def test_the_same_error_at_the_same_step_twice_stops_at_once() -> None:
    run = running()
    run.fault(FaultKind.USER_CODE, 57, signature="TypeError: x")
    decision = run.fault(FaultKind.USER_CODE, 57, signature="TypeError: x")
    assert decision.stop_exit_code == 6
    assert "the same error at the same step twice" in decision.reason


@pytest.mark.parametrize(("step", "signature"), [(58, "TypeError: x"), (57, "TypeError: z")])
def test_another_error_or_another_step_is_not_the_same(step: int, signature: str) -> None:
    run = running()
    run.fault(FaultKind.USER_CODE, 57, signature="TypeError: x")
    assert run.fault(FaultKind.USER_CODE, step, signature=signature).stop_exit_code is None


def test_an_error_whose_step_went_well_since_is_forgotten() -> None:
    run = running()
    run.fault(FaultKind.USER_CODE, 57, signature="OSError: y")
    run.steps(50, 58)
    assert run.fault(FaultKind.USER_CODE, 57, signature="OSError: y").stop_exit_code is None


def test_a_run_that_has_checkpoints_has_done_steps_even_if_the_ladder_did_not_see_them() -> None:
    run = Run()
    run.saved(100)
    assert run.fault(FaultKind.USER_CODE, 101, signature="OSError: y").tier is Tier.RESUME


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


# ------------------------------------------------------------------------------------------------ checkpoints


def test_a_checkpoint_that_led_to_the_same_trouble_twice_is_passed_over() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57)  # loads 30
    run.fault(FaultKind.PROCESS, 33)  # 30 again: the first failure after loading it
    run.saved(25)
    run.candidates = tuple(sorted(run.candidates, key=lambda c: c.ref.step))
    run.state = replace(run.state, infra=None)  # the machine was replaced, the next death is another matter
    decision = run.fault(FaultKind.PROCESS, 33)
    assert decision.restore == CheckpointRef(3, 25)
    assert "passing over step 30 (generation 1)" in decision.reason


def test_a_poisoned_checkpoint_does_not_loop_for_ever() -> None:
    run = running()
    restores = [run.fault(FaultKind.NONFINITE, 53).restore for _ in range(4)]
    assert restores[0] != restores[1]
    assert run.decisions[-1].stop_exit_code == 4


def test_without_an_unreadable_candidate_the_same_question_gives_the_same_tier_further_back() -> None:
    run = running()
    fault = Fault(FaultKind.PROCESS, 57, 57, 1.0)

    def ask(candidates: tuple[CandidateCheckpoint, ...]) -> Decision:
        return decide(run.state, fault, candidates, POLICY, (), run_precision="bf16", generation=2)

    assert (ask(run.candidates).tier, ask(run.candidates).restore) == (Tier.RESUME, CheckpointRef(1, 50))
    assert (ask(run.candidates[:-1]).tier, ask(run.candidates[:-1]).restore) == (Tier.RESUME, CheckpointRef(1, 40))


# ------------------------------------------------------------------------------------------------ plain starts


def test_a_new_run_starts_from_the_initial_state() -> None:
    decision = plan_start(LadderState(), (), POLICY, (), run_precision="bf16")
    assert (decision.tier, decision.restore, decision.precision) == (None, None, "bf16")


def test_an_unfinished_run_goes_on_from_its_newest_commit() -> None:
    run = running()
    decision = plan_start(run.state, run.candidates, POLICY, (), run_precision="bf16")
    assert decision.restore == CheckpointRef(1, 50)
    assert decision.state.spent == 0


def test_inside_a_numeric_episode_a_planned_restart_uses_a_good_state_from_before_the_onset() -> None:
    run = running()
    run.fault(FaultKind.SPIKE, 57)
    run.saved(60, good=False)
    decision = plan_start(run.state, run.candidates, POLICY, run.events, run_precision="bf16")
    assert decision.restore == CheckpointRef(1, 30)
    assert "numeric episode 1 is still open" in decision.reason


def test_a_planned_restart_inside_an_fp32_window_stays_in_fp32() -> None:
    run = running()
    for _ in range(3):
        run.fault(FaultKind.NONFINITE, 57)
    decision = plan_start(run.state, run.candidates, POLICY, run.events, run_precision="bf16")
    assert (decision.precision, decision.fp32_until) == ("fp32", 68)


# ------------------------------------------------------------------------------------------------ every history

fault_kinds = st.sampled_from(list(FaultKind))


@dataclass(frozen=True)
class Fail:
    """A fault some steps ahead of where the run is."""

    kind: FaultKind
    ahead: int
    back: int


@dataclass(frozen=True)
class Steps:
    """Some steps are done."""

    count: int
    healthy: bool


@dataclass(frozen=True)
class Save:
    """A checkpoint is committed."""

    good: bool


moves = st.lists(
    st.one_of(
        st.builds(Fail, kind=fault_kinds, ahead=st.integers(0, 12), back=st.integers(0, 10)),
        st.builds(Steps, count=st.integers(1, 80), healthy=st.booleans()),
        st.builds(Save, good=st.booleans()),
    ),
    max_size=40,
)


def play(story: list[Fail | Steps | Save]) -> Run:
    """Play a story to its end, or to the end of the ladder."""
    run, at = Run(), 0
    run.steps(0, 0)
    for move in story:
        match move:
            case Fail(kind, ahead, back):
                decision = run.fault(kind, at + ahead, max(0, at + ahead - back), signature=str(kind))
                at = decision.restore.step if decision.restore else 0
                if decision.stop_exit_code is not None:
                    return run
            case Steps(count, healthy):
                run.steps(at, at + count - 1, healthy=healthy)
                at += count
            case Save(good):
                run.saved(at, good=good)
    return run


@given(moves)
def test_a_journalled_state_gives_the_same_verdicts_again(story: list[Fail | Steps | Save]) -> None:
    run = play(story)
    for (state, fault, candidates, events, generation), decision in zip(run.asked, run.decisions, strict=True):
        again = decide(
            LadderState.from_json(json.loads(json.dumps(state.to_json()))),
            fault,
            candidates,
            POLICY,
            events,
            run_precision="bf16",
            generation=generation,
        )
        assert again == decision


@given(moves, st.integers(0, 500))
def test_the_learning_rate_is_never_below_the_floor_and_no_event_is_ever_lost(
    story: list[Fail | Steps | Save], step: int
) -> None:
    run = play(story)
    assert lr_factor(step, run.events, floor=0.0, ramp_steps=1000) + 1e-9 >= 0.5
    counts = [len(decision.lr_events) for decision in run.decisions]
    assert counts == sorted(counts)


@given(moves)
def test_inside_a_numeric_episode_only_good_states_from_before_the_onset_are_loaded(
    story: list[Fail | Steps | Save],
) -> None:
    run = play(story)
    for (_, _, candidates, _, _), decision in zip(run.asked, run.decisions, strict=True):
        numeric = decision.state.numeric
        if numeric is not None and decision.restore is not None:
            assert decision.restore.step <= numeric.onset
            assert CandidateCheckpoint(decision.restore, good=True) in candidates


@given(st.lists(st.tuples(fault_kinds, st.integers(-1, 60)), min_size=30, max_size=30))
@settings(max_examples=50)
def test_without_progress_every_sequence_of_faults_ends(faults: list[tuple[FaultKind, int]]) -> None:
    run = running()
    for kind, step in faults:
        if run.fault(kind, max(step, 0) if kind.numeric else step, signature="same").stop_exit_code is not None:
            break
    assert run.decisions[-1].stop_exit_code in {4, 6}
    assert len(run.decisions) <= 8


@given(st.lists(st.integers(1, 30), min_size=60, max_size=60))
@settings(max_examples=20)
def test_small_progress_between_faults_does_not_make_the_series_endless(gains: list[int]) -> None:
    run, at = running(replace(POLICY, episodes_per_hour=1000)), 60
    for gain in gains:
        run.steps(at, at + gain)
        at += gain + 1
        if run.fault(FaultKind.PROCESS, at).stop_exit_code is not None:
            break
    assert run.decisions[-1].stop_exit_code == 4


@given(st.lists(st.integers(2, 40), min_size=1, max_size=5))
def test_unrelated_node_deaths_never_leave_tier_1(gaps: list[int]) -> None:
    run, at = running(), 57
    for gap in gaps:
        run.steps(at, at + gap)
        at += gap + 1
        decision = run.fault(FaultKind.PROCESS, at)
        assert (decision.tier, decision.lr_events) == (Tier.RESUME, ())
