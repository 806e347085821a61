"""The recovery ladder where processes are lost or the user's code fails, and what a start without a fault takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.ladder_run import POLICY, Run, running

from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier
from stormsail.supervisor.ladder import CandidateCheckpoint, Decision, Fault, LadderState, Note, decide, plan_start

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
