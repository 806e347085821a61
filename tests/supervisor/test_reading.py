"""Reading a run from its storage: how it stands, while it runs and afterwards."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.run_kit import Staff

from stormsail.platform.runs import RunPlace
from stormsail.supervisor.reading import read_record, read_run, render_status, status_of

Played = Callable[[Callable[[Staff], None]], RunPlace]


def test_journal_and_rows_are_read_in_the_order_in_which_things_happened(past: RunPlace) -> None:
    run = read_run(past)
    assert [row["step"] for row in run.rows] == [*range(25), *range(20, 30)]
    assert [event.number for event in run.events] == list(range(1, len(run.events) + 1))
    assert run.record.outcome == "finished"
    assert run.last_step == 30


def test_the_outcome_is_what_the_journal_says(past: RunPlace) -> None:
    assert read_record(past).outcome == "finished"


def test_a_finished_run_says_how_it_ended(past: RunPlace) -> None:
    state = status_of(read_run(past))
    assert (state["run"], state["incarnation"], state["outcome"], state["exit_code"]) == ("run", 1, "finished", 0)
    assert (state["step"], state["applied"], state["skipped"]) == (30, 30, 0)
    assert (state["attempt"], state["generation"], state["tier"]) == (1, 2, None)


def test_newest_and_known_good_are_checkpoints_that_a_restore_could_take(played: Played) -> None:
    def rolled_back(staff: Staff) -> None:
        staff.steps(0, 19)
        staff.checkpoint(10, good=True)
        staff.checkpoint(20, good=True)
        staff.ledger.note("generation.created", generation=2, parent=1, fork_step=10, reason="rollback", owner="test")

    state = status_of(read_run(played(rolled_back)))
    assert state["newest_checkpoint"] == "1/10"
    assert state["newest_good_checkpoint"] == "1/10"


def test_a_run_that_has_done_nothing_has_a_status_too(played: Played) -> None:
    state = status_of(read_run(played(lambda _staff: None)))
    assert (state["outcome"], state["step"], state["loss"], state["newest_checkpoint"]) == ("unfinished", 0, None, None)
    text = render_status(state)
    assert "loss         none yet" in text
    assert "no checkpoint yet" in text


def test_a_run_in_trouble_says_which_tier_it_is_at(played: Played) -> None:
    from stormsail.platform.messages import FaultKind, Incident

    def troubled(staff: Staff) -> None:
        staff.steps(0, 19)
        staff.checkpoint(10, good=True)
        staff.answering.incident(Incident(1, 19, 19, FaultKind.SPIKE, 14.0, {}))

    state = status_of(read_run(played(troubled)))
    assert state["tier"] == 1
    assert "tier 1 of the ladder" in render_status(state)


def test_a_run_that_is_being_evaluated_says_so_until_that_is_over(played: Played) -> None:
    def evaluating(staff: Staff) -> None:
        staff.steps(0, 19)
        staff.ledger.note("evaluation.begun", step=20)

    def killed(staff: Staff) -> None:
        evaluating(staff)
        staff.ledger.note("attempt.started", attempt=2, workers=1)

    state = status_of(read_run(played(evaluating)))
    assert state["evaluating"]["step"] == 20
    assert "  evaluating   after step 20, since " in render_status(state)
    assert status_of(read_run(played(killed)))["evaluating"] is None


def test_updates_that_were_not_applied_are_counted(played: Played) -> None:
    def dropped(staff: Staff) -> None:
        staff.steps(0, 4)
        staff.steps(5, 5, applied=5, outcome="dropped")

    state = status_of(read_run(played(dropped)))
    assert (state["step"], state["applied"], state["skipped"]) == (6, 5, 1)


def test_the_status_for_people_names_what_matters(past: RunPlace) -> None:
    text = render_status(status_of(read_run(past)))
    assert text.startswith("run (finished, last event ")
    for part in ("step         30 (0 without an update)", "newest       2/30", "health       calm"):
        assert part in text
