"""A run ends once, with the state that it ends in, its exit code and its last phase."""

from __future__ import annotations

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import Staff, data_of

from stormsail.platform.errors import ClusterError, FencedError, StorageUnavailableError
from stormsail.platform.journal import Journal
from stormsail.supervisor import ending
from stormsail.supervisor.phases import RunPhase


def test_it_is_finished_with_the_digest_of_its_last_state(staff: Staff) -> None:
    staff.steps(0, 9)
    staff.checkpoint(10)
    ending.finish(staff.ledger, 10, applied=9, where="here")
    noted = data_of(Journal.read(staff.store), "run.finished")
    assert (noted["applied"], noted["digest"]) == (9, staff.published[-1].manifest.root)
    assert (staff.ledger.record.exit_code, staff.ledger.phase) == (0, RunPhase.DONE)


def test_a_last_state_that_was_not_saved_is_no_finish(staff: Staff) -> None:
    staff.steps(0, 9)
    staff.checkpoint(9)
    with pytest.raises(StorageUnavailableError, match="the state of step 10 could not be saved"):
        ending.finish(staff.ledger, 10, applied=10, where="here")
    assert staff.journal[-1] == "run.unsaved"
    assert staff.ledger.record.outcome == ""


def test_a_stop_names_the_newest_saved_step_and_a_digest_only_of_the_last_state(staff: Staff) -> None:
    staff.steps(0, 9)
    staff.checkpoint(5)
    staff.ledger.stop_reason = "enough"
    ending.stop(staff.ledger, 8)
    noted = data_of(Journal.read(staff.store), "run.stopped")
    assert (noted["saved_step"], noted["digest"], noted["reason"]) == (5, None, "enough")
    assert (staff.ledger.record.exit_code, staff.ledger.phase) == (5, RunPhase.STOPPED)


def test_who_gives_up_says_why_and_keeps_the_exit_code_of_the_reason(staff: Staff) -> None:
    error = ClusterError("no room", todo="add nodes")
    ending.give_up(staff.ledger, error)
    assert staff.ledger.error is error
    assert (staff.ledger.record.outcome, staff.ledger.record.exit_code) == ("failed", 75)
    assert staff.ledger.phase is RunPhase.FAILED


def test_who_was_replaced_says_nothing_in_the_journal_of_the_other(staff: Staff) -> None:
    before = staff.journal
    ending.give_up(staff.ledger, FencedError("taken over"))
    assert staff.journal == before
    assert staff.ledger.record.outcome == ""


def test_an_end_that_was_told_is_not_told_otherwise(staff: Staff) -> None:
    staff.steps(0, 9)
    staff.checkpoint(10)
    ending.finish(staff.ledger, 10, applied=10, where="here")
    ending.give_up(staff.ledger, ClusterError("while the end was tidied up"))
    assert (staff.ledger.record.outcome, staff.journal[-1]) == ("finished", "run.finished")


def test_a_store_that_is_away_when_it_gives_up_hides_no_reason(staff: Staff) -> None:
    assert isinstance(staff.store, FragileStore)
    staff.store.go_down()
    error = StorageUnavailableError("Nobody answers")
    ending.give_up(staff.ledger, error)
    assert staff.ledger.error is error
    assert staff.ledger.phase is RunPhase.FAILED
