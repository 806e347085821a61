"""The whole report of a played run."""

from __future__ import annotations

import pytest
from tests.support.tape import START_S, Tape

from stormsail import __version__
from stormsail.platform.errors import NoSuchRunError
from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier
from stormsail.supervisor.report.build import build_report
from stormsail.supervisor.report.model import Report

KEYS = {
    "run", "stormsail", "outcome", "exit_code", "wall_s", "ettr", "ettr_without_queueing", "productive_s", "replay_s",
    "stall_s", "restart_s", "idle_s", "lost_steps", "steps", "applied", "tokens", "final_loss", "final_digest",
    "incidents", "lr_events", "checkpoints", "drill",
}  # fmt: skip
INCIDENT_KEYS = {
    "number", "kind", "tier", "tier_name", "tiers_tried", "onset", "step", "detected_s", "decided_s", "recovered_s",
    "mttr_s", "lost_steps", "phases", "reason", "decisions", "recovered",
}  # fmt: skip
CLASSES = (
    "productive_s", "replay_s", "evaluate_s", "stall_s", "detect_s", "decide_s", "restart_s", "load_s", "idle_s",
)  # fmt: skip
SAVED = CheckpointRef(1, 50)


def report_of(tape: Tape, now_s: float | None = None) -> Report:
    return build_report(tape.events, tape.rows, run="r", version="1", now_s=now_s)


def killed_once() -> Tape:
    """100 steps of 1 s; rank 1 is lost at step 57, the run resumes from step 50."""
    tape = Tape()
    tape.start()
    tape.steps(0, 56)
    tape.fault(FaultKind.PROCESS, 57)
    tape.decided(Tier.RESUME, SAVED)
    tape.restored(SAVED)
    tape.again(50, 56, 99)
    tape.finish(100)
    return tape


def test_a_quiet_run_is_productive_but_for_its_start() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 97)
    tape.finish(98)
    report = report_of(tape)
    assert (report.outcome, report.exit_code, report.final_digest) == ("done", 0, "d" * 16)
    assert (report.wall_s, report.productive_s, report.restart_s) == (100.0, 98.0, 2.0)
    assert report.ettr == pytest.approx(0.98)
    assert (report.steps, report.applied, report.tokens, report.final_loss) == (98, 98, 9800, 5.0 - 0.97)
    assert (report.lost_steps, report.incidents, report.drill) == (0, (), None)


def test_every_second_is_in_one_class() -> None:
    report = report_of(killed_once())
    assert sum(getattr(report, name) for name in CLASSES) == pytest.approx(report.wall_s)


def test_a_lost_process_costs_its_phases_and_the_steps_done_again() -> None:
    report = report_of(killed_once())
    assert (report.productive_s, report.replay_s) == (100.0, 7.0)
    assert (report.detect_s, report.decide_s, report.load_s) == (3.0, 0.5, 1.0)
    assert report.restart_s == 2.0 + 7.0
    assert report.lost_steps == 7
    assert report.incidents[0].lost_steps == 7
    assert report.ettr == pytest.approx(100.0 / report.wall_s)


def test_the_report_has_the_promised_keys() -> None:
    data = report_of(killed_once()).to_json()
    assert data.keys() >= KEYS
    assert isinstance(data["incidents"], list)
    incident = data["incidents"][0]
    assert incident.keys() >= INCIDENT_KEYS
    assert incident["phases"].keys() == {"detect_s", "decide_s", "restart_s", "load_s", "catch_up_s"}


def test_waiting_for_resources_is_idle_and_left_out_of_the_second_ettr() -> None:
    tape = Tape()
    tape.note("run.started")
    tape.note("resources.waiting")
    tape.note("resources.ready", after_s=50.0)
    tape.born()
    tape.steps(0, 49)
    report = report_of(tape)
    assert (report.idle_s, report.ettr, report.ettr_without_queueing) == (50.0, 0.5, 1.0)


def test_a_run_that_was_stopped_and_continued_was_idle_between() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    tape.note("run.stopped", step=10, reason="asked", exit_code=5)
    tape.note("run.continued", after_s=100.0)
    tape.restored(CheckpointRef(1, 10))
    tape.steps(10, 19)
    report = report_of(tape)
    assert (report.outcome, report.exit_code, report.idle_s, report.productive_s) == ("running", None, 100.0, 20.0)
    assert report.lost_steps == 0


def test_a_gap_between_steps_is_a_stall() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 4)
    tape.clock_s += 3.0
    tape.steps(5, 9)
    assert report_of(tape).stall_s == 3.0


def test_a_run_that_is_not_over_ends_now() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    assert report_of(tape, now_s=START_S + 20.0).wall_s == 20.0
    assert report_of(tape).wall_s == 12.0


@pytest.mark.parametrize(
    ("kind", "data", "outcome", "code"),
    [
        ("run.stopped", {"reason": "asked"}, "stopped", 5),
        ("run.exhausted", {"reason": "used up"}, "exhausted", 4),
        ("run.failed", {"error": "TypeError", "exit_code": 6}, "failed", 6),
        ("run.failed", {"error": "a bug"}, "failed", 1),
    ],
)
def test_each_end_has_its_outcome_reason_and_code(kind: str, data: dict[str, object], outcome: str, code: int) -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 3)
    tape.note(kind, step=4, after_s=1.0, **data)
    report = report_of(tape)
    assert (report.outcome, report.exit_code, report.wall_s) == (outcome, code, 7.0)
    assert report.outcome_reason in data.values()


def test_lost_steps_belong_to_the_incident_whose_decision_repeated_them() -> None:
    tape = killed_once()
    tape.events.pop()
    tape.fault(FaultKind.SPIKE, 100)
    event = LrEvent(step=90, factor=0.8, generation=3, released_step=350)
    tape.decided(Tier.ROLLBACK, CheckpointRef(2, 90), episode=2, events=(event,))
    tape.restored(CheckpointRef(2, 90))
    tape.again(90, 99, 110)
    report = report_of(tape)
    assert [incident.lost_steps for incident in report.incidents] == [7, 10]
    assert report.lost_steps == 17
    assert report.lr_events == ({"step": 90, "factor": 0.8, "generation": 3, "released_step": 350},)


def test_checkpoints_are_counted() -> None:
    tape = Tape()
    tape.start()
    for step in (10, 20):
        tape.note("checkpoint.committed", step=step, generation=1, bytes=1000, took_s=0.1, digest=f"d{step}")
    tape.note("checkpoint.good", step=10, generation=1)
    tape.note("checkpoint.missed", step=30, generation=1, why="full")
    tape.note("checkpoint.corrupt", step=20, generation=1, problem="digest")
    tape.note("checkpoint.deleted", refs=[[1, 10]])
    found = report_of(tape).checkpoints
    assert (found.committed, found.good, found.missed, found.corrupt, found.deleted) == (2, 1, 1, 1, 1)
    assert (found.bytes, found.last_step, found.last_generation, found.last_digest) == (2000, 20, 1, "d20")


def test_small_things_are_counted_too() -> None:
    tape = Tape()
    tape.start()
    for kind in ("update.dropped", "update.dropped", "step.empty", "checkpoint.deleted"):
        tape.note(kind, step=1)
    tape.steps(1, 3)
    tape.rows[1]["flagged"] = True
    report = report_of(tape)
    assert (report.dropped_updates, report.empty_steps, report.watched_steps) == (2, 1, 1)


@pytest.mark.parametrize(("config", "name"), [('{"name": "quickstart"}', "quickstart"), ("[]", "")])
def test_without_a_name_the_journal_is_asked(config: str, name: str) -> None:
    tape = Tape()
    tape.note("run.started", config=config)
    tape.note("run.stopped")
    assert build_report(tape.events, []).run == name


def test_without_a_version_it_is_the_one_that_runs() -> None:
    tape = Tape()
    tape.note("run.started")
    assert build_report(tape.events, []).stormsail == __version__


def test_an_empty_journal_is_a_bug_of_the_caller() -> None:
    with pytest.raises(NoSuchRunError, match="has not begun"):
        build_report([], [])


def test_a_run_that_only_just_began_has_a_report() -> None:
    tape = Tape()
    tape.note("run.started")
    report = report_of(tape)
    assert (report.wall_s, report.ettr, report.steps, report.final_loss) == (0.0, 0.0, 0, None)


def test_a_run_that_finished_without_a_row_ends_with_its_last_event() -> None:
    tape = Tape()
    tape.note("run.started")
    tape.finish(0)
    assert report_of(tape).wall_s == 2.0


def test_the_order_of_rows_does_not_matter() -> None:
    tape = killed_once()
    report = report_of(tape)
    tape.rows.reverse()
    assert report_of(tape) == report
