"""Checkpoints from the run's side: noted, missed, known good, and taken up where nobody came to note them."""

from __future__ import annotations

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import KEEP_LITTLE, Staff, checkpoint_meta, data_of, small_config, written_part

from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.config.model import RunConfig
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef, FaultKind, Incident


@pytest.fixture
def config() -> RunConfig:
    return small_config(checkpoint=KEEP_LITTLE)


def test_a_commit_is_noted_with_what_the_report_needs(staff: Staff) -> None:
    staff.checkpoint(1)
    noted = data_of(Journal.read(staff.store), "checkpoint.committed")
    assert noted["generation"] == 1
    assert noted["finite"] is True
    assert noted["digest"] == staff.published[0].manifest.root
    assert noted["bytes"] > 0


def test_misses_in_a_row_raise_one_alert(staff: Staff) -> None:
    for step in (1, 2, 3):
        staff.keeper.missed(1, step, "slow")
    assert staff.journal.count("checkpoint.missed") == 3
    assert staff.journal.count("checkpoint.alert") == 1
    assert data_of(Journal.read(staff.store), "checkpoint.alert")["missed"] == 2


def test_a_save_that_all_ranks_miss_is_one_miss(staff: Staff) -> None:
    for _ in range(3):
        staff.keeper.missed(1, 10, "the store was away")
    assert "checkpoint.alert" not in staff.journal
    staff.keeper.missed(1, 20, "the store was away")
    assert data_of(Journal.read(staff.store), "checkpoint.alert")["missed"] == 2


def test_a_commit_ends_the_row_of_misses(staff: Staff) -> None:
    staff.keeper.missed(1, 1, "slow")
    staff.checkpoint(2)
    staff.keeper.missed(1, 3, "slow")
    assert "checkpoint.alert" not in staff.journal


def test_nothing_is_promoted_inside_a_numeric_episode(staff: Staff) -> None:
    staff.steps(0, 5)
    staff.checkpoint(3)
    staff.answering.incident(Incident(1, 5, 5, FaultKind.SPIKE, 9.0))
    staff.keeper.promote(30)
    assert staff.ledger.record.good == frozenset()


def test_a_commit_whose_answer_was_lost_counts_when_a_repair_asks(staff: Staff) -> None:
    """The committer heard an error and gave the save up, but the store had taken it."""
    store = staff.store
    assert isinstance(store, FragileStore)
    staff.checkpoint(1)
    store.lost = "commits/"
    staff.checkpoint(2)
    store.lost = None
    assert "checkpoint.missed" in staff.journal
    assert [candidate.ref.step for candidate in staff.ledger.candidates()] == [1]
    staff.keeper.recheck()
    assert [candidate.ref.step for candidate in staff.ledger.candidates()] == [1, 2]


def test_a_store_that_is_away_when_a_repair_asks_costs_nothing(staff: Staff) -> None:
    store = staff.store
    assert isinstance(store, FragileStore)
    staff.checkpoint(1)
    staff.keeper.missed(1, 2, "away")
    store.go_down()
    staff.keeper.recheck()
    assert [candidate.ref.step for candidate in staff.ledger.candidates()] == [1]


def test_a_commit_that_nobody_came_to_note_is_taken_up(staff: Staff) -> None:
    """Its supervisor died between the commit and the note."""
    ref = CheckpointRef(1, 4)
    commit(staff.store, [written_part(staff.store, ref, 0, seed=4)], checkpoint_meta(4), parent=None, time_s=1.0)
    assert staff.ledger.candidates() == []
    staff.keeper.adopt()
    assert [candidate.ref for candidate in staff.ledger.candidates()] == [ref]
    staff.keeper.adopt()
    assert staff.journal.count("checkpoint.committed") == 1
