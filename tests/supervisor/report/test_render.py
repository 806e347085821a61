"""The report as text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.tape import Tape

from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier
from stormsail.supervisor.report.build import build_report
from stormsail.supervisor.report.render import clock, length, render_report

OLDER = CheckpointRef(1, 40)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.42 s"), (12.34, "12.3 s"), (252.0, "4 min 12 s"), (11_100.0, "3 h 05 min")],
)
def test_a_length_is_told_in_its_unit(seconds: float, text: str) -> None:
    assert length(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0:00"), (62.4, "1:02"), (3723.0, "1:02:03")])
def test_a_time_is_told_as_on_a_stopwatch(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def drilled() -> str:
    tape = Tape()
    tape.start()
    tape.steps(0, 56)
    tape.note("checkpoint.committed", step=50, generation=1, bytes=2_500_000, took_s=0.1, digest="d50")
    tape.note("drill.fired", step=55, index=0, kind="bf16_overflow", rank=1)
    tape.note("update.dropped", step=55, rank=1, first_parameter="w", count=3)
    tape.fault(FaultKind.NONFINITE, 57, onset=55, error="3 updates dropped in a row", evidence={"samples": [456, 463]})
    tape.note("diagnosis.made", step=55, cause="toxic_data", confidence=0.9, evidence=["2 samples stand out"])
    tape.decided(Tier.FP32_REPLAY, OLDER, events=(LrEvent(40, 0.8, 2, 308),))
    tape.restored(OLDER)
    tape.again(40, 56, 67)
    tape.note("replay.finished", step=68, verdict="numerics", fp32_loss=2.0, bf16_loss=2.5)
    tape.steps(68, 99)
    tape.note("drill.twin", step=20, digest="aa", twin_digest="aa", identical=True)
    tape.finish(100)
    return render_report(build_report(tape.events, tape.rows, run="quickstart"))


@pytest.mark.parametrize(
    "line",
    [
        "Run quickstart: done (exit code 0) after 2 min 10 s",
        "Incident 1: non-finite numbers at step 57, begun at step 55: cured by tier 3 (FP32 replay)",
        "noticed on rank 1: 3 updates dropped in a row",
        "samples 456 to 463 of the data order",
        "diagnosis: toxic data (90% sure)",
        "2 samples stand out",
        "tier 3: because of episode 1",
        "FP32 replay ended at step 68: numerics (loss 2.0000 in FP32, 2.5000 before)",
        "17 steps were computed again",
        "x 0.8 from step 40, held until step 308, then back in a ramp",
        "Checkpoints: 1 committed (2.5 MB)",
        "Drill: recovered 1 of 1",
        "bf16_overflow at step 55: incident 1, recovered",
        "undisturbed twin at step 20: identical yes",
        "1 non-finite update was dropped",
        "of the time did new steps",
    ],
)
def test_a_drill_is_told_in_plain_words(line: str) -> None:
    assert line in drilled()


def test_no_line_is_wider_than_a_wide_terminal_and_none_ends_in_a_blank() -> None:
    lines = drilled().splitlines()
    assert max(len(line) for line in lines) <= 200
    assert not [line for line in lines if line != line.rstrip()]


def test_a_quiet_run_says_that_nothing_happened() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    text = render_report(build_report(tape.events, tape.rows))
    assert "Run without a name: running after" in text
    assert "incidents none" in text
    assert "no step was computed twice" in text
    assert "Drill" not in text
    assert "Learning rate" not in text


def test_a_used_up_ladder_says_what_was_tried_and_why_it_ended() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 56)
    tape.fault(FaultKind.SPIKE, 57)
    tape.decided(Tier.RESUME, OLDER)
    tape.restored(OLDER)
    tape.fault(FaultKind.SPIKE, 57, error="x" * 400 + "\nmore")
    tape.decided(Tier.EXHAUSTED, None)
    tape.note("run.exhausted", reason="every tier was tried", exit_code=4)
    text = render_report(build_report(tape.events, tape.rows))
    assert "why       every tier was tried" in text
    assert "not cured; tiers tried: 1" in text


def test_other_ends_and_gaps_are_told_too() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 3)
    tape.note("checkpoint.missed", step=3, generation=1, why="full")
    tape.note("drill.fired", step=4, index=0, kind="raise", rank=0)
    tape.note("drill.fired", step=9, index=1, kind="nonfinite", rank=0)
    tape.fault(FaultKind.USER_CODE, 4, error="y" * 400)
    tape.note("run.failed", error="TypeError", exit_code=6)
    report = build_report(tape.events, tape.rows)
    text = render_report(replace(report, lr_events=({"step": 1, "factor": 0.5, "released_step": None},)))
    assert "error in the user's code at step 4: no repair was tried" in text
    assert "raise at step 4: incident 1, not recovered" in text
    assert "nonfinite at step 9: not recovered" in text
    assert "1 could not be saved, 0 failed verification" in text
    assert "held for good" in text
    assert "y" * 101 not in text


def test_a_ladder_that_was_used_up_before_any_tier_says_so() -> None:
    tape = Tape()
    tape.start()
    tape.decided(Tier.EXHAUSTED, None)
    tape.note("replay.finished", step=3)
    assert "not cured; no tier was tried" in render_report(build_report(tape.events, tape.rows))


def test_a_replay_without_a_verdict_is_told_by_its_end() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    tape.fault(FaultKind.NONFINITE, 10)
    tape.decided(Tier.FP32_REPLAY, None)
    tape.note("replay.finished", step=21)
    text = render_report(build_report(tape.events, tape.rows))
    assert "FP32 replay ended at step 21\n" in text + "\n"


def test_evidence_of_a_hang_is_named_with_its_place() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    keys = ["evidence/1/10/rank-0.txt", "evidence/1/10/vitals.json"]
    tape.note(
        "hang.evidence", step=10, finding="rank 1 is stopped", keys=keys, folder="/runs/x/evidence/1/10", problem=""
    )
    tape.fault(FaultKind.HANG, 10, error="rank 1 is stopped")
    tape.decided(Tier.RESUME, CheckpointRef(1, 5))
    text = render_report(build_report(tape.events, tape.rows))
    assert "evidence: rank 1 is stopped\n" in text
    assert "2 files in /runs/x/evidence/1/10, and stored below evidence/1/10\n" in text


def test_alerts_and_what_shadow_mode_left_undone_are_told() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    tape.note("ladder.shadowed", step=7, kind="spike", error="z 14", action="tier 1, resume from step 5")
    tape.note(
        "ladder.shadowed", step=8, kind="spike", error="z 9", action="tier 1", diagnosis="likely toxic data (60% sure)"
    )
    tape.note("hang.shadowed", step=9, rank=1, reason="rank 1 is stopped")
    tape.note("alert.sent", channel="slack", about=[3])
    tape.note("alert.failed", channel="email", about=[3], why="the mail server answered 554 never")
    text = render_report(build_report(tape.events, tape.rows))
    assert "  loss spike at step 7: z 14\n    it would have been: tier 1, resume from step 5\n" in text
    assert "step 8: z 9\n    diagnosis: likely toxic data (60% sure)\n    it would" in text
    assert "  hanging process at step 9: rank 1 is stopped\n" in text
    assert "Alerts: 1 message sent, 1 lost: the mail server answered 554 never" in text


def test_a_run_without_alerts_or_shadow_mode_does_not_speak_of_them() -> None:
    tape = Tape()
    tape.start()
    text = render_report(build_report(tape.events, tape.rows))
    assert "Alerts" not in text
    assert "Shadow" not in text
