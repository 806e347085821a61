"""The ledger: one memory of the run, journalled before it is known, and known again by the next supervisor."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import LIMIT_S, kinds, step_row

from stormsail.platform.errors import FencedError, InternalError, StorageUnavailableError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.series import read_series
from stormsail.platform.storage.memory import MemoryStore
from stormsail.supervisor.ladder_state import LadderState
from stormsail.supervisor.ledger import Ledger, parent_of
from stormsail.supervisor.phases import RunEvent, RunPhase
from stormsail.supervisor.record import Record, fold


@pytest.fixture
def store() -> FragileStore:
    return FragileStore()


@pytest.fixture
def ledger(store: FragileStore, tmp_path: Path) -> Ledger:
    return opened(store, tmp_path / "first")


def opened(store: MemoryStore, folder: Path, *, writer: str = "one") -> Ledger:
    return Ledger(store, folder, writer=writer, deadline_s=0.1)


def generation(ledger: Ledger, number: int, parent: int | None = None, fork_step: int = 0) -> None:
    ledger.note("generation.created", generation=number, parent=parent, fork_step=fork_step, reason="why", owner="test")
    ledger.fork_at(fork_step)


def test_a_new_run_has_no_past(ledger: Ledger) -> None:
    assert ledger.is_new
    ledger.note("run.started", config="{}")
    assert not ledger.is_new


def test_an_event_is_in_the_store_and_in_the_record_when_note_returns(store: FragileStore, ledger: Ledger) -> None:
    ledger.note("attempt.started", attempt=4, workers=2)
    assert ledger.record.attempt == 4
    assert kinds(Journal.read(store)) == ["attempt.started"]


def test_events_carry_the_generation_and_attempt_in_force(ledger: Ledger) -> None:
    generation(ledger, 1)
    ledger.note("attempt.started", attempt=1, workers=2)
    event = ledger.note("spike.watch", step=7, severity=6.5)
    assert (event.generation, event.attempt, event.step) == (1, 1, 7)


def test_a_generation_is_noted_under_its_own_number(ledger: Ledger) -> None:
    generation(ledger, 1)
    assert ledger.look((0, 0)).events[-1].generation == 1


def test_what_waits_for_a_store_that_is_away_is_known_and_comes_later(store: FragileStore, ledger: Ledger) -> None:
    store.go_down()
    ledger.note("attempt.started", attempt=1, workers=2)
    assert ledger.record.attempt == 1
    store.come_back()
    ledger.flush(LIMIT_S)
    assert kinds(Journal.read(store)) == ["attempt.started"]


def test_a_durable_note_says_when_the_store_stayed_away(store: FragileStore, ledger: Ledger) -> None:
    store.go_down()
    with pytest.raises(StorageUnavailableError):
        ledger.note("ladder.decided", durable=True, state=LadderState().to_json(), lr_events=[], skip=[])


def test_a_second_writer_fences_the_first(store: FragileStore, ledger: Ledger, tmp_path: Path) -> None:
    ledger.note("run.started", config="{}")
    opened(store, tmp_path / "second", writer="two").note("run.continued", config="{}")
    with pytest.raises(FencedError):
        ledger.note("spike.watch", step=3)


def test_the_next_supervisor_knows_what_this_one_knew(store: FragileStore, ledger: Ledger, tmp_path: Path) -> None:
    ledger.note("run.started", config="{}")
    generation(ledger, 1)
    ledger.note("checkpoint.committed", step=10, generation=1, digest="d", finite=True)
    ledger.note("ladder.decided", state=LadderState(episodes=1).to_json(), lr_events=[], skip=[[0, 8]])
    known = opened(store, tmp_path / "second", writer="two")
    assert known.record == ledger.record == fold(Journal.read(store))
    assert known.phase is RunPhase.WAITING


def test_counters_between_decisions_change_without_a_journal_entry(store: FragileStore, ledger: Ledger) -> None:
    ledger.set_ladder(LadderState(healthy_steps=5))
    assert ledger.record.ladder.healthy_steps == 5
    assert Journal.read(store) == []


def test_an_illegal_change_of_phase_leaves_it_as_it_was(ledger: Ledger) -> None:
    with pytest.raises(InternalError, match="cannot happen"):
        ledger.move(RunEvent.FINISHED)
    assert ledger.phase is RunPhase.WAITING


class TestRows:
    @pytest.fixture(autouse=True)
    def _begun(self, ledger: Ledger) -> None:
        generation(ledger, 1)

    def test_a_row_said_twice_counts_once(self, store: FragileStore, ledger: Ledger) -> None:
        assert [ledger.add_row(step_row(step)) for step in (0, 1, 1, 0)] == [True, True, False, False]
        ledger.flush(LIMIT_S)
        assert [row["step"] for row in read_series(store)] == [0, 1]

    def test_rows_of_another_generation_are_not_taken(self, ledger: Ledger) -> None:
        generation(ledger, 2, parent=1, fork_step=0)
        assert not ledger.add_row(step_row(5, generation=1))
        assert not ledger.add_row(step_row(5, generation=3))
        assert ledger.add_row(step_row(0, generation=2))

    def test_the_position_is_the_next_step(self, ledger: Ledger) -> None:
        assert ledger.position == 0
        ledger.add_row(step_row(6))
        assert ledger.position == 7

    def test_after_a_rollback_the_position_is_where_it_goes_on(self, ledger: Ledger) -> None:
        ledger.add_row(step_row(57))
        generation(ledger, 2, parent=1, fork_step=40)
        assert ledger.position == 40

    def test_losses_are_remembered_up_to_a_fork(self, ledger: Ledger) -> None:
        for step in range(5):
            ledger.add_row(step_row(step, loss=float(step)))
        ledger.fork_at(3)
        assert ledger.losses_between(1, 5) == ((1, 1.0), (2, 2.0))

    def test_a_loss_that_is_not_finite_is_expected_of_nobody(self, ledger: Ledger) -> None:
        ledger.add_row(step_row(0, loss=float("nan")))
        assert ledger.losses_between(0, 1) == ()

    def test_losses_of_a_configuration_that_has_changed_are_forgotten(self, ledger: Ledger) -> None:
        ledger.add_row(step_row(0))
        ledger.forget_losses()
        assert ledger.losses_between(0, 1) == ()

    def test_the_highest_step_survives_forks_and_supervisors(
        self, store: FragileStore, ledger: Ledger, tmp_path: Path
    ) -> None:
        ledger.add_row(step_row(57))
        generation(ledger, 2, parent=1, fork_step=40)
        ledger.add_row(step_row(40, generation=2))
        ledger.flush(LIMIT_S)
        assert ledger.highest == 57
        assert opened(store, tmp_path / "second", writer="two").highest == 57

    def test_the_next_supervisor_expects_only_losses_of_the_live_line(
        self, store: FragileStore, ledger: Ledger, tmp_path: Path
    ) -> None:
        for step in range(58):
            ledger.add_row(step_row(step, loss=1.0))
        generation(ledger, 2, parent=1, fork_step=40)
        for step in (40, 41):
            ledger.add_row(step_row(step, generation=2, loss=2.0))
        ledger.flush(LIMIT_S)
        known = opened(store, tmp_path / "second", writer="two")
        wanted = ((39, 1.0), (40, 2.0), (41, 2.0))
        assert known.losses_between(39, 50) == ledger.losses_between(39, 50) == wanted

    def test_a_fork_without_rows_of_its_own_counts_too(
        self, store: FragileStore, ledger: Ledger, tmp_path: Path
    ) -> None:
        for step in range(10):
            ledger.add_row(step_row(step))
        generation(ledger, 2, parent=1, fork_step=4)
        ledger.flush(LIMIT_S)
        assert len(opened(store, tmp_path / "second", writer="two").losses_between(0, 10)) == 4

    def test_the_replay_is_compared_with_what_was_computed_before_the_fork(self, ledger: Ledger) -> None:
        for step in (3, 4, 5):
            ledger.add_row(step_row(step, outcome="dropped" if step == 4 else "applied", loss=2.0))
        generation(ledger, 2, parent=1, fork_step=3)
        for step in (3, 4, 5):
            ledger.add_row(step_row(step, generation=2, precision="fp32", loss=1.0))
        verdict = ledger.replay_verdict()
        assert (verdict.steps, verdict.anomalous, verdict.healed) == (3, (4,), (4,))
        assert (verdict.fp32_loss, verdict.bf16_loss) == (1.0, 2.0)


class TestLooking:
    def test_a_follower_sees_everything_once(self, ledger: Ledger) -> None:
        generation(ledger, 1)
        ledger.add_row(step_row(0))
        first = ledger.look((0, 0))
        ledger.add_row(step_row(1))
        ledger.note("spike.watch", step=1)
        second = ledger.look(first.cursor)
        third = ledger.look(second.cursor)
        assert kinds(first.events) == ["generation.created"]
        assert kinds(second.events) == ["spike.watch"]
        assert [row.step for look in (first, second, third) for row in look.rows] == [0, 1]
        assert third.events == ()

    def test_a_look_tells_step_phase_and_whether_it_is_over(self, ledger: Ledger) -> None:
        seen = ledger.look((0, 0))
        assert (seen.step, seen.phase, seen.over, seen.error) == (0, RunPhase.WAITING, False, None)
        ledger.over.set()
        assert ledger.look((0, 0)).over


def test_notes_of_many_threads_make_one_journal_without_holes(store: FragileStore, ledger: Ledger) -> None:
    threads = [threading.Thread(target=note_some, args=(ledger, index)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert [event.number for event in Journal.read(store)] == list(range(1, 41))


def note_some(ledger: Ledger, index: int) -> None:
    for step in range(10):
        ledger.note("spike.watch", step=step, thread=index)


class TestParent:
    @pytest.fixture
    def known(self, ledger: Ledger) -> Record:
        generation(ledger, 1)
        generation(ledger, 2, parent=1, fork_step=40)
        return ledger.record

    def test_a_generation_goes_on_from_the_checkpoint_that_it_forked_at(self, known: Record) -> None:
        assert parent_of(known, 2) == CheckpointRef(1, 40)

    @pytest.mark.parametrize("number", [1, 9])
    def test_the_first_and_an_unknown_one_have_no_parent(self, known: Record, number: int) -> None:
        assert parent_of(known, number) is None


def test_a_followers_cursor_outlives_a_supervisor(store: FragileStore, ledger: Ledger, tmp_path: Path) -> None:
    ledger.note("run.started", config="{}")
    generation(ledger, 1)
    for step in range(5):
        ledger.add_row(step_row(step, generation=1))
    cursor = ledger.look((0, 0)).cursor
    ledger.flush(LIMIT_S)
    second = opened(store, tmp_path / "second", writer="two")
    generation(second, 2, 1, 5)
    second.add_row(step_row(5, generation=2))
    assert [row.step for row in second.look(cursor).rows] == [5]


def test_a_durable_note_that_has_to_wait_too_long_is_known_all_the_same(store: FragileStore, ledger: Ledger) -> None:
    store.go_down()
    with pytest.raises(StorageUnavailableError):
        ledger.note("run.exhausted", reason="all tried", exit_code=4, durable=True)
    assert ledger.record.outcome == "exhausted"
    store.come_back()
    ledger.flush(30.0)
    assert kinds(Journal.read(store)) == ["run.exhausted"]


def test_looking_does_not_wait_for_the_lock(ledger: Ledger) -> None:
    ledger.note("run.started", config="{}")
    seen = []
    with ledger.lock:
        looker = threading.Thread(target=lambda: seen.append(ledger.look((0, 0))))
        looker.start()
        looker.join(LIMIT_S)
    assert [event.kind for event in seen[0].events] == ["run.started"]
