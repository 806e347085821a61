"""From events to incidents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.tape import START_S, Tape

from stormsail.platform.messages import CheckpointRef, FaultKind, Tier
from stormsail.supervisor.report.build import build_report
from stormsail.supervisor.report.fields import read_rows
from stormsail.supervisor.report.incidents import climbs, describe, times
from stormsail.supervisor.report.model import IncidentEntry

SAVED = CheckpointRef(1, 50)
OLDER = CheckpointRef(1, 40)


def incidents(tape: Tape) -> list[IncidentEntry]:
    rows = read_rows(tape.rows)
    return [
        describe(number, climb, times(climb, rows, tape.clock_s), lost_steps=0, start_s=START_S)
        for number, climb in enumerate(climbs(tape.events), start=1)
    ]


def running() -> Tape:
    """A run that has done the steps 0 to 56, at 59 s."""
    tape = Tape()
    tape.start()
    tape.steps(0, 56)
    return tape


def test_one_lost_process_is_one_incident_with_its_five_phases() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57, error="rank 1 died", fault_time_s=tape.clock_s + 1.0)
    tape.decided(Tier.RESUME, SAVED)
    tape.restored(SAVED)
    tape.again(50, 56, 60)
    (incident,) = incidents(tape)
    assert (incident.kind, incident.tier, incident.tier_name, incident.recovered) == ("process", 1, "resume", True)
    assert (incident.step, incident.onset, incident.rank, incident.error) == (57, 57, 1, "rank 1 died")
    phases = incident.phases
    assert (phases.detect_s, phases.decide_s, phases.restart_s, phases.load_s) == (2.0, 0.5, 7.0, 1.0)
    assert phases.catch_up_s == 8.0
    assert incident.mttr_s == pytest.approx(phases.total_s)
    assert (incident.detected_s, incident.decided_s, incident.recovered_s) == (62.0, 62.5, 78.5)


def test_it_is_told_which_places_the_state_came_from() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    tape.decided(Tier.RESUME, SAVED)
    tape.restored(SAVED, places={"store": 7, "vault": 100})
    tape.again(50, 56, 60)
    assert incidents(tape)[0].restored_from == ("vault", "store")


def test_what_fails_after_the_last_step_is_cured_when_the_run_is_there_again() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57, fault_time_s=tape.clock_s + 1.0)
    tape.decided(Tier.RESUME, SAVED)
    tape.restored(SAVED)
    tape.steps(50, 56)
    assert not incidents(tape)[0].recovered
    tape.finish(57)
    (incident,) = incidents(tape)
    assert (incident.recovered, incident.recovered_s, incident.phases.catch_up_s) == (True, 77.5, 7.0)


def test_so_is_what_fails_after_the_last_save() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    tape.decided(Tier.RESUME, CheckpointRef(1, 57))
    tape.finish(57)
    assert incidents(tape)[0].recovered


def test_without_a_known_instant_a_fault_happened_after_the_last_step() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    tape.decided(Tier.RESUME, SAVED)
    assert incidents(tape)[0].phases.detect_s == 3.0


def test_a_spike_happened_before_its_onset() -> None:
    tape = running()
    tape.fault(FaultKind.SPIKE, 57, onset=55)
    tape.decided(Tier.RESUME, SAVED)
    assert incidents(tape)[0].phases.detect_s == 2.0 + 3.0


def test_several_tiers_in_one_episode_are_one_incident() -> None:
    tape = running()
    tape.fault(FaultKind.SPIKE, 57)
    tape.decided(Tier.RESUME, SAVED)
    tape.restored(SAVED, restart_s=0.0)
    tape.steps(50, 56)
    tape.fault(FaultKind.SPIKE, 57)
    tape.decided(Tier.ROLLBACK, OLDER)
    tape.restored(OLDER, restart_s=0.0)
    tape.again(40, 56, 120)
    tape.note("episode.closed", step=107, episode=1, tier="rollback")
    (incident,) = incidents(tape)
    assert (incident.tier, incident.tiers_tried, incident.closed) == (2, (1, 2), True)
    assert [decision.restore for decision in incident.decisions] == [
        {"generation": 1, "step": 50},
        {"generation": 1, "step": 40},
    ]
    assert incident.reason == "because of episode 1"
    assert incident.phases.detect_s == 6.0
    assert incident.mttr_s == pytest.approx(incident.phases.total_s)


def test_healthy_time_between_a_repair_and_a_recurrence_is_no_repair_time() -> None:
    tape = running()
    for fault_step in (57, 90):
        tape.fault(FaultKind.SPIKE, fault_step)
        tape.decided(Tier.RESUME, SAVED)
        tape.restored(SAVED, restart_s=0.0)
        tape.again(50, fault_step - 1, 89)
    (incident,) = incidents(tape)
    assert incident.recovered_s is not None
    assert incident.mttr_s is not None
    assert incident.mttr_s < incident.recovered_s - incident.detected_s


def test_a_decision_that_was_taken_again_for_a_damaged_checkpoint_is_no_new_fault() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    tape.decided(Tier.RESUME, SAVED)
    tape.note("checkpoint.corrupt", step=50, generation=1, problem="digest")
    tape.decided(Tier.RESUME, OLDER)
    tape.restored(OLDER)
    tape.again(40, 56, 60)
    (incident,) = incidents(tape)
    assert (len(incident.decisions), incident.tiers_tried, incident.recovered) == (2, (1,), True)


def test_the_echo_of_a_fault_is_not_an_incident_of_its_own() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57, error="first")
    tape.fault(FaultKind.PROCESS, 57, error="echo")
    tape.decided(Tier.RESUME, SAVED)
    assert [incident.error for incident in incidents(tape)] == ["first"]


def test_two_episodes_are_two_incidents() -> None:
    tape = running()
    for episode, step in ((1, 57), (2, 80)):
        tape.fault(FaultKind.PROCESS, step)
        tape.decided(Tier.RESUME, SAVED, episode=episode)
        tape.restored(SAVED)
        tape.again(50, step - 1, 79)
    assert [incident.recovered for incident in incidents(tape)] == [True, True]


def test_an_incident_inside_another_does_not_hide_that_both_were_overcome() -> None:
    tape = running()
    tape.fault(FaultKind.SPIKE, 57)
    tape.decided(Tier.RESUME, SAVED, episode=1)
    tape.restored(SAVED)
    tape.steps(50, 52)
    tape.fault(FaultKind.PROCESS, 53)
    tape.decided(Tier.RESUME, SAVED, episode=2)
    tape.restored(SAVED)
    tape.again(50, 56, 60)
    assert [(incident.kind, incident.recovered) for incident in incidents(tape)] == [
        ("spike", True),
        ("process", True),
    ]


def test_a_used_up_ladder_is_not_recovered() -> None:
    tape = running()
    tape.fault(FaultKind.SPIKE, 57)
    tape.decided(Tier.EXHAUSTED, None)
    tape.note("run.exhausted", step=57, reason="r", exit_code=4)
    (incident,) = incidents(tape)
    assert (incident.tier, incident.recovered, incident.mttr_s, incident.recovered_s) == (4, False, None, None)


def test_an_error_that_failed_the_run_is_an_incident_without_a_repair() -> None:
    tape = running()
    tape.fault(FaultKind.USER_CODE, 57, error="TypeError")
    tape.note("run.failed", error="TypeError", exit_code=6)
    (incident,) = incidents(tape)
    assert (incident.episode, incident.tier, incident.decisions, incident.reason) == (None, None, (), "")


def test_a_decision_to_stop_has_no_tier_and_no_recovery() -> None:
    tape = running()
    tape.fault(FaultKind.USER_CODE, 57)
    tape.decided(None, None, episode=None)
    tape.note("run.failed", error="TypeError", exit_code=6)
    (incident,) = incidents(tape)
    assert (incident.tier, incident.tiers_tried, incident.recovered) == (None, (), False)
    assert incident.reason == "because of episode None"


def test_a_fault_that_came_with_a_stop_is_no_incident() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    tape.note("run.stopped", step=57, reason="asked")
    assert incidents(tape) == []


def test_a_fault_that_waits_for_its_decision_is_shown() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    assert [incident.recovered for incident in incidents(tape)] == [False]


def test_a_decision_whose_fault_is_not_in_the_journal_is_shown() -> None:
    tape = running()
    tape.decided(Tier.RESUME, SAVED)
    (incident,) = incidents(tape)
    assert (incident.kind, incident.step, incident.detected_s) == ("unknown", None, 59.5)


def test_a_plain_start_belongs_to_no_incident() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    tape.note("run.continued")
    tape.restored(SAVED)
    tape.again(50, 56, 60)
    assert incidents(tape) == []


def test_a_recovery_that_a_new_supervisor_finished_is_found_in_the_rows() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    tape.decided(Tier.RESUME, SAVED)
    tape.note("run.continued", after_s=4.0)
    tape.restored(SAVED)
    tape.steps(50, 60)
    assert incidents(tape)[0].recovered


def test_what_an_fp32_replay_showed_is_in_its_incident() -> None:
    tape = running()
    tape.fault(FaultKind.NONFINITE, 57)
    tape.decided(Tier.FP32_REPLAY, OLDER)
    tape.restored(OLDER)
    tape.again(40, 56, 67)
    tape.note("replay.finished", step=68, verdict="numerics", fp32_loss=2.0, bf16_loss=2.5, steps=28)
    assert incidents(tape)[0].replay == {
        "step": 68,
        "verdict": "numerics",
        "fp32_loss": 2.0,
        "bf16_loss": 2.5,
        "steps": 28,
    }


def test_a_diagnosis_is_in_the_incident_that_it_was_made_for() -> None:
    tape = running()
    tape.fault(FaultKind.SPIKE, 57)
    tape.note("diagnosis.made", step=55, cause="numerics", confidence=0.9, evidence=["FP32 heals it"])
    tape.decided(Tier.FP32_REPLAY, OLDER)
    tape.restored(OLDER)
    tape.again(40, 56, 67)
    tape.fault(FaultKind.PROCESS, 67)
    tape.decided(Tier.RESUME, SAVED, episode=2)
    first, second = incidents(tape)
    assert first.diagnosis == {"step": 55, "cause": "numerics", "confidence": 0.9, "evidence": ["FP32 heals it"]}
    assert second.diagnosis is None


def test_a_diagnosis_of_what_shadow_mode_left_is_not_that_of_the_next_incident() -> None:
    tape = running()
    tape.note("diagnosis.made", step=50, cause="toxic_data", confidence=0.6, evidence=[])
    tape.note("ladder.shadowed", step=50, kind="spike", error="z 14", action="tier 1")
    tape.fault(FaultKind.PROCESS, 57)
    tape.decided(Tier.RESUME, SAVED)
    assert incidents(tape)[0].diagnosis is None


def test_a_replay_that_nobody_decided_and_a_close_of_an_unknown_episode_change_nothing() -> None:
    tape = running()
    tape.note("replay.finished", step=68)
    tape.note("episode.closed", episode=9)
    assert incidents(tape) == []


def test_clocks_that_disagree_never_give_a_negative_phase() -> None:
    tape = running()
    tape.fault(FaultKind.PROCESS, 57, fault_time_s=tape.clock_s + 1000.0)
    tape.decided(Tier.RESUME, SAVED)
    tape.clock_s -= 40.0
    tape.restored(SAVED)
    tape.again(50, 56, 60)
    phases = incidents(tape)[0].phases
    lengths = (phases.detect_s, phases.decide_s, phases.restart_s, phases.load_s, phases.catch_up_s)
    assert min(lengths) >= 0.0


def test_a_repair_counts_from_the_step_that_proved_it_not_from_when_the_news_came() -> None:
    """Rows and news travel in the same heartbeat: the run's last step may lie before both."""
    tape = running()
    tape.fault(FaultKind.PROCESS, 57)
    tape.decided(Tier.RESUME, SAVED)
    tape.restored(SAVED)
    tape.again(50, 56, 60)
    late = [replace(event, time_s=event.time_s + 100.0 * (event.kind == "recovery.caught_up")) for event in tape.events]
    report = build_report(late, tape.rows, run="r", version="1")
    assert report.incidents[0].recovered
