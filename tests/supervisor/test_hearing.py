"""What workers say is taken once, in order, and only from those of the present."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import (
    LIMIT_S,
    Staff,
    beat,
    checkpoint_meta,
    data_of,
    join_request,
    small_config,
    spike,
    step_row,
    written_part,
)

from stormsail.platform.errors import ConfigError, StorageFullError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef, Directive, Phase, WorkerFailure
from stormsail.supervisor.ledger import Ledger


class TestJoining:
    def test_the_world_is_noted_once_when_all_have_joined(self, staff: Staff) -> None:
        for rank in (1, 0, 0):
            staff.hearing.join(join_request(rank))
        noted = data_of(Journal.read(staff.store), "world.formed")
        assert staff.journal.count("world.formed") == 1
        assert noted["world_size"] == 2
        assert [worker["host"] for worker in noted["workers"]] == ["host-0", "host-1"]

    def test_everybody_gets_the_same_directive_and_what_drills_have_fired(self, staff: Staff) -> None:
        staff.hearing.drill_fired(0, "kill", 3, 1)
        for rank in (0, 1):
            staff.hearing.join(join_request(rank))
        first, second = (staff.hearing.placement(1, rank) for rank in (0, 1))
        assert first is not None
        assert second is not None
        assert (first.world.rank, second.world.rank) == (0, 1)
        assert first.directive is second.directive is staff.decider.directive
        assert first.fired == ((0, 1),)

    def test_a_worker_of_an_older_attempt_gets_no_place(self, staff: Staff) -> None:
        staff.hearing.join(join_request(0, attempt=0))
        assert staff.membership.workers == []

    def test_workers_that_read_different_data_are_an_error_that_names_one(self, staff: Staff) -> None:
        staff.hearing.join(join_request(0, data="abc"))
        with pytest.raises(ConfigError, match="worker 1 reads other data than worker 0"):
            staff.hearing.join(join_request(1, data="xyz"))
        assert "world.formed" not in staff.journal

    def test_data_that_changed_since_the_run_began_are_an_error(self, staff: Staff) -> None:
        staff.ledger.note("world.formed", world_size=2, workers=[], data_digest="at the beginning")
        staff.hearing.join(join_request(0))
        with pytest.raises(ConfigError, match="other data than the run began with"):
            staff.hearing.join(join_request(1))


class TestHeartbeats:
    def test_a_heartbeat_of_an_older_attempt_is_told_to_leave(self, staff: Staff) -> None:
        reply = staff.hearing.heartbeat(beat(attempt=0, rows=(step_row(0),)))
        assert "attempt 0 is over" in reply.abort
        assert staff.ledger.position == 0

    def test_workers_leave_when_the_supervisor_has_ended_the_run(self, staff: Staff) -> None:
        staff.ledger.over.set()
        assert staff.hearing.heartbeat(beat()).abort

    def test_a_heartbeat_said_twice_is_counted_once(self, staff: Staff) -> None:
        said = beat(rows=(step_row(0), step_row(1)), lines=((1, "spike.watch", {"step": 1, "reason": "z 7"}),))
        for _ in range(2):
            staff.hearing.heartbeat(said)
        assert staff.ledger.record.ladder.healthy_steps == 2
        assert staff.journal.count("spike.watch") == 1

    def test_a_slow_rank_is_noted_with_its_host(self, staff: Staff) -> None:
        for rank in (0, 1):
            staff.hearing.join(join_request(rank))
        staff.hearing.heartbeat(beat(lines=((1, "rank.slow", {"step": 30, "rank": 1, "ratio": 1.5}),)))
        noted = next(event for event in Journal.read(staff.store) if event.kind == "rank.slow")
        assert noted.data["host"] == join_request(1).hostname

    def test_lines_of_different_ranks_are_counted_apart(self, staff: Staff) -> None:
        for rank in (0, 1):
            line = (1, "checkpoint.missed", {"generation": 1, "step": 10, "rank": rank, "why": "slow"})
            staff.hearing.heartbeat(beat(rank=rank, lines=(line,)))
        assert staff.journal.count("checkpoint.missed") == 2

    def test_the_end_of_the_loop_is_kept_for_whoever_drives_the_run(self, staff: Staff) -> None:
        staff.hearing.heartbeat(beat(lines=((1, "loop.ended", {"outcome": "done", "step": 40, "applied": 40}),)))
        assert staff.hearing.loop_end == {"outcome": "done", "step": 40, "applied": 40}
        assert "loop.ended" not in staff.journal

    def test_a_request_to_stop_is_the_answer(self, staff: Staff) -> None:
        staff.ledger.stop_reason = "lunch"
        assert staff.hearing.heartbeat(beat()).stop_requested == "lunch"

    def test_a_new_attempt_starts_with_a_clean_slate(self, staff: Staff) -> None:
        staff.hearing.abort = "stuck"
        staff.hearing.worker_failed(failure())
        staff.ledger.note("attempt.started", attempt=2, workers=2)
        staff.hearing.begin(2)
        assert (staff.hearing.abort, staff.hearing.failures, staff.hearing.loop_end) == ("", [], {})
        line = (1, "spike.watch", {"step": 1, "reason": "z 7"})
        assert not staff.hearing.heartbeat(beat(attempt=2, lines=(line,))).abort
        assert "spike.watch" in staff.journal

    def test_workers_of_a_supervisor_that_was_replaced_are_told_to_leave(self, staff: Staff, tmp_path: Path) -> None:
        Ledger(staff.store, tmp_path / "rival", writer="rival", deadline_s=0.1).note("run.continued", config="{}")
        line = (1, "spike.watch", {"step": 1, "reason": "z 7"})
        assert "rival" in staff.hearing.heartbeat(beat(lines=(line,))).abort
        assert staff.hearing.heartbeat(beat(rank=1)).abort
        assert staff.ledger.error is not None


class TestFailures:
    def test_last_words_of_the_present_attempt_are_kept(self, staff: Staff) -> None:
        staff.hearing.worker_failed(failure())
        staff.hearing.worker_failed(failure(attempt=0))
        assert staff.hearing.failures == [failure()]

    def test_only_a_kill_tells_when_the_process_was_lost(self, staff: Staff) -> None:
        staff.hearing.drill_fired(0, "bf16_overflow", 5, 1)
        assert staff.hearing.fired_s is None
        staff.hearing.drill_fired(1, "kill", 9, 1)
        assert staff.hearing.fired_s is not None
        assert staff.ledger.record.fired == ((0, 1), (1, 1))

    def test_a_rank_that_does_not_move_is_found(self, tmp_path: Path) -> None:

        staff = Staff(FragileStore(), tmp_path, small_config(cluster={"workers": 2, "step_timeout_s": 1e-9}))
        staff.begin()
        staff.hearing.heartbeat(beat(rank=1, phase=Phase.STEP, step=4))
        stuck = staff.hearing.find_stuck()
        assert stuck is not None
        assert stuck.rank == 1
        staff.close()

    def test_a_part_of_an_older_generation_makes_no_checkpoint(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.answering.incident(spike(9))
        staff.hearing.part_written(written_part(staff.store, CheckpointRef(1, 10), 0), checkpoint_meta(10), 0.1)
        assert staff.committer.drain(LIMIT_S)
        assert staff.ledger.record.commits == ()
        assert "a generation that is over" in data_of(Journal.read(staff.store), "checkpoint.missed")["why"]


def failure(attempt: int = 1) -> WorkerFailure:
    return WorkerFailure(attempt, 1, 8, "user", "ValueError: bad", "Traceback", 6, 1.0)


def test_a_directive_that_nobody_gave_yet_gives_nobody_a_place(tmp_path: Path) -> None:
    staff = Staff(FragileStore(), tmp_path)
    staff.membership.expect(attempt=1, generation=1, workers=1)
    staff.membership.join(join_request(0))
    assert staff.hearing.placement(1, 0) is None
    staff.decider.directive = Directive(1)
    assert staff.hearing.placement(1, 0) is not None
    staff.close()


def test_what_could_not_be_noted_is_noted_when_it_is_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's disk is full for a while; training has gone on, and nothing that it said is lost."""
    staff = Staff(FragileStore(), tmp_path)
    staff.begin()
    said = beat(step=4, rows=(step_row(3),), lines=((1, "spike.watch", {"step": 3}), (2, "spike.watch", {"step": 4})))
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(StorageFullError):
            staff.hearing.heartbeat(said)
    staff.hearing.heartbeat(said)
    staff.hearing.heartbeat(said)
    assert [event.step for event in Journal.read(staff.store) if event.kind == "spike.watch"] == [3, 4]
    staff.close()


def full(_handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nobody_hangs_in_an_attempt_that_is_over(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    staff.hearing.heartbeat(beat(step=3))
    staff.hearing.end()
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert staff.hearing.find_stuck() is None
    assert staff.hearing.abort == ""
