"""What the report says of the evaluations on held-out samples."""

from __future__ import annotations

from typing import Any

from tests.support.tape import Tape

from stormsail.platform.messages import CheckpointRef
from stormsail.supervisor.report.build import build_report
from stormsail.supervisor.report.model import Report
from stormsail.supervisor.report.render import render_report


def evaluated(tape: Tape, step: int, loss: float | None, took_s: float = 2.0, eval_set: str = "a") -> None:
    """Evaluate at a step, and save it."""
    tape.clock_s += took_s
    found: dict[str, Any] = {"generation": tape.generation, "loss": loss, "eval_set": eval_set}
    tape.note("evaluation.finished", step=step, **found, took_s=took_s, at_s=tape.clock_s)
    tape.note("checkpoint.committed", step=step, generation=tape.generation, bytes=1, digest="d")


def report_of(tape: Tape) -> Report:
    return build_report(tape.events, tape.rows, run="r")


def three_times() -> Tape:
    tape = Tape()
    tape.start()
    for first, loss in ((0, 3.0), (10, 2.0), (20, 2.5)):
        tape.steps(first, first + 9)
        evaluated(tape, first + 10, loss)
    return tape


def test_the_lowest_one_and_the_last_one_are_told() -> None:
    report = report_of(three_times())
    found = report.evaluation
    assert found is not None
    assert (found.count, found.last_step, found.last_loss) == (3, 30, 2.5)
    assert (found.best_step, found.best_loss, found.best_kept) == (20, 2.0, True)
    text = render_report(report)
    assert "Evaluation: 3 times, the last at step 30: loss 2.5000" in text
    assert "  the lowest at step 20: loss 2.0000, its checkpoint is kept" in text
    assert "other held-out samples" not in text


def test_a_checkpoint_that_was_removed_is_not_kept() -> None:
    tape = three_times()
    tape.note("checkpoint.deleted", refs=[[1, 20]])
    report = report_of(tape)
    assert report.evaluation is not None
    assert not report.evaluation.best_kept
    assert "its checkpoint is not there" in render_report(report)


def test_a_checkpoint_that_failed_verification_is_damaged() -> None:
    tape = three_times()
    tape.note("checkpoint.corrupt", step=20, generation=1, problem="torn")
    assert "its checkpoint is damaged" in render_report(report_of(tape))


def test_its_time_is_neither_productive_nor_lost() -> None:
    report = report_of(three_times())
    assert (report.evaluate_s, report.productive_s, report.stall_s, report.replay_s) == (6.0, 30.0, 0.0, 0.0)
    assert "evaluating 6.0 s" in render_report(report)


def test_what_was_rolled_back_counts_no_more() -> None:
    tape = three_times()
    tape.restored(CheckpointRef(1, 10))
    tape.again(10, 30, 31)
    report = report_of(tape)
    found = report.evaluation
    assert found is not None
    assert (found.count, found.thrown_away, found.best_step, found.best_loss) == (1, 2, 10, 3.0)
    assert "Evaluation: 1 time (2 more of states that were thrown away), the last at step 10" in render_report(report)


def test_the_lowest_one_is_one_over_the_samples_that_are_evaluated_now() -> None:
    tape = three_times()
    tape.steps(30, 39)
    evaluated(tape, 40, 2.75, eval_set="b")
    report = report_of(tape)
    assert report.evaluation is not None
    assert (report.evaluation.best_step, report.evaluation.other_samples) == (40, 3)
    assert "  3 were over other held-out samples, and compare with none of these" in render_report(report)


def test_a_loss_that_was_not_finite_is_never_the_lowest() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    evaluated(tape, 10, None)
    report = report_of(tape)
    assert report.evaluation is not None
    assert (report.evaluation.last_loss, report.evaluation.best_step, report.evaluation.best_kept) == (
        None,
        None,
        False,
    )
    assert "the last at step 10: no finite loss" in render_report(report)
    assert "the lowest" not in render_report(report)


def test_a_run_that_was_never_evaluated_says_nothing() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    report = report_of(tape)
    assert report.evaluation is None
    assert "valuat" not in render_report(report)
