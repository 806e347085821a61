"""What workers say is taken once, in order, and only from those of the present."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
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
    log_steps,
    lost_process,
    small_config,
    step_row,
    written_part,
)

from stormsail.platform.errors import ConfigError, StorageFullError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import (
    CheckpointRef,
    Directive,
    FaultKind,
    Incident,
    LogSpan,
    Phase,
    Tier,
    WorkerFailure,
)
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.phases import RunEvent, RunPhase


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    made = Staff(FragileStore(), tmp_path)
    made.begin()
    yield made
    made.close()


def phase_of(staff: Staff) -> RunPhase:
    return staff.ledger.phase


def spike(step: int, *, generation: int = 1) -> Incident:
    return Incident(generation, step, step, FaultKind.SPIKE, 14.2, {"reason": "loss z 14.2", "rank": -1})


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

    def test_the_first_step_moves_the_phase(self, staff: Staff) -> None:
        assert phase_of(staff) is RunPhase.STARTING
        staff.steps(0, 0)
        assert phase_of(staff) is RunPhase.RUNNING

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

    def test_a_run_that_becomes_slow_as_a_whole_is_noted_once_and_so_is_its_end(self, staff: Staff) -> None:
        now = 1e6
        for step in range(200):
            now += 1.0 if 80 <= step < 140 else 0.2
            staff.hearing.heartbeat(beat(step=step, rows=(step_row(step, time_s=now),)))
        kinds = staff.journal
        assert (kinds.count("throughput.collapsed"), kinds.count("throughput.recovered")) == (1, 1)

    def test_lines_of_different_ranks_are_counted_apart(self, staff: Staff) -> None:
        for rank in (0, 1):
            line = (1, "checkpoint.missed", {"generation": 1, "step": 10, "rank": rank, "why": "slow"})
            staff.hearing.heartbeat(beat(rank=rank, lines=(line,)))
        assert staff.journal.count("checkpoint.missed") == 2

    def test_rows_of_an_older_generation_are_ignored(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.hearing.incident(spike(9))
        staff.hearing.heartbeat(beat(generation=1, rows=(step_row(10, generation=1),)))
        assert staff.ledger.highest == 9

    def test_a_step_with_a_dropped_update_or_a_flag_is_not_healthy(self, staff: Staff) -> None:
        staff.hearing.heartbeat(beat(rows=(step_row(0), step_row(1, outcome="dropped"), step_row(2, flagged=True))))
        assert staff.ledger.record.ladder.healthy_steps == 1

    def test_healthy_steps_make_a_checkpoint_good(self, staff: Staff) -> None:
        staff.steps(0, 9)
        ref = staff.checkpoint(10)
        staff.steps(10, 10)
        assert ref not in staff.ledger.record.good
        staff.steps(11, 11)
        assert ref in staff.ledger.record.good

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


class TestRecovery:
    def test_the_first_step_and_the_first_new_ground_after_a_repair_are_noted(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.hearing.incident(spike(9))
        staff.steps(0, 9)
        assert staff.journal[-1] == "recovery.first_step"
        staff.steps(10, 10)
        assert "recovery.caught_up" in staff.journal

    def test_fp32_steps_of_tier_3_are_a_phase_of_their_own(self, staff: Staff) -> None:
        staff.steps(0, 9)
        tiers = [staff.hearing.incident(spike(9, generation=generation)).tier for generation in (1, 2, 3)]
        assert tiers == [Tier.RESUME, Tier.ROLLBACK, Tier.FP32_REPLAY]
        staff.steps(0, 3, precision="fp32")
        assert phase_of(staff) is RunPhase.REPLAYING
        line = (1, "replay.finished", {"step": 20, "window_dtype": "float32", "precision": "bf16", "took_s": 0.1})
        staff.hearing.heartbeat(beat(lines=(line,)))
        assert phase_of(staff) is RunPhase.RUNNING
        assert data_of(Journal.read(staff.store), "replay.finished")["steps"] == 4


class TestIncidents:
    def test_an_incident_is_journalled_with_its_evidence_before_the_decision(self, staff: Staff) -> None:
        staff.steps(0, 9)
        directive = staff.hearing.incident(spike(9))
        assert [kind for kind in staff.journal if kind != "run.started"][-3:] == [
            "fault.detected",
            "ladder.decided",
            "generation.created",
        ]
        assert data_of(Journal.read(staff.store), "fault.detected")["evidence"]["reason"] == "loss z 14.2"
        assert (directive.generation, directive.tier) == (2, Tier.RESUME)

    def test_an_older_generation_is_refused(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.hearing.incident(spike(9))
        before = staff.journal
        assert staff.hearing.incident(spike(9)).stop_reason
        assert staff.journal == before

    def test_what_is_just_being_published_counts_for_the_decision(self, staff: Staff) -> None:
        staff.steps(0, 12)
        staff.hearing.part_written(written_part(staff.store, CheckpointRef(1, 10), 0), checkpoint_meta(10), 0.1)
        staff.ledger.note("checkpoint.good", step=10, generation=1)
        assert staff.hearing.incident(spike(12)).restore == CheckpointRef(1, 10)

    def test_an_incident_while_a_person_waits_for_the_end_ends_the_loop(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.ledger.stop_reason = "enough"
        staff.ledger.move(RunEvent.STOP_ASKED)
        assert staff.hearing.incident(spike(9)).stop_reason == "enough"
        assert "ladder.decided" not in staff.journal

    def test_a_checkpoint_that_cannot_be_loaded_is_never_taken_again(self, staff: Staff) -> None:
        staff.steps(0, 22)
        refs = [staff.checkpoint(step, good=True) for step in (10, 20)]
        first = staff.hearing.incident(spike(22))
        assert first.restore == refs[1]
        again = staff.hearing.restore_failed(refs[1], "a frame is damaged")
        assert again.restore == refs[0]
        assert staff.ledger.record.corrupt == {refs[1]}
        assert data_of(Journal.read(staff.store), "checkpoint.corrupt")["problem"] == "a frame is damaged"


class TestGradientLog:
    @pytest.fixture
    def staff(self, tmp_path: Path) -> Iterator[Staff]:
        made = Staff(FragileStore(), tmp_path, small_config(checkpoint={"gradient_log": "store"}))
        made.begin()
        made.steps(0, 14)
        made.checkpoint(10)
        log_steps(made.store, 1, 8, 17)
        made.ledger.move(RunEvent.FAULT)
        made.decider.decide(lost_process(15))
        yield made
        made.close()

    def test_a_log_that_was_refused_is_noted_and_its_steps_are_computed(self, staff: Staff) -> None:
        answer = staff.hearing.replay_failed(2, 13, "damaged")
        assert (answer.generation, answer.restore, answer.replay) == (3, CheckpointRef(1, 10), (LogSpan(1, 10, 13),))
        noted = data_of(Journal.read(staff.store), "log.refused")
        assert (noted["generation"], noted["problem"]) == (2, "damaged")
        assert staff.hearing.replay_failed(3, 10, "damaged too").replay == ()

    def test_an_older_generation_is_not_heard(self, staff: Staff) -> None:
        assert staff.hearing.replay_failed(1, 13, "late news").stop_reason

    def test_only_rows_that_were_lost_are_taken_up_and_none_counts_as_progress(self, staff: Staff) -> None:
        """Steps 15 and 16 were computed and logged, but the process died before anybody heard of them."""
        rows = tuple(step_row(step, generation=2) for step in range(10, 17))
        staff.hearing.heartbeat(beat(generation=2, step=17, rows=rows))
        assert [row.step for row in staff.ledger.look((0, 0)).rows] == list(range(17))
        assert staff.ledger.record.ladder.completed == -1
        assert staff.ledger.phase is RunPhase.RECOVERING
        assert staff.ledger.position == 17


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
        staff.hearing.incident(spike(9))
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


class TestAfterTheAttempt:
    def test_an_incident_that_comes_too_late_starts_no_second_decision(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.hearing.end()
        generation = staff.ledger.record.generation
        assert staff.hearing.incident(spike(9)).stop_reason == "an older generation asked"
        assert staff.ledger.record.generation == generation

    def test_nobody_hangs_in_an_attempt_that_is_over(self, staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
        staff.hearing.heartbeat(beat(step=3))
        staff.hearing.end()
        monkeypatch.setattr("time.monotonic", lambda: 1e9)
        assert staff.hearing.find_stuck() is None
        assert staff.hearing.abort == ""

    def test_a_checkpoint_that_nobody_is_loading_is_not_blamed(self, staff: Staff) -> None:
        staff.steps(0, 9)
        ref = staff.checkpoint(10, good=True)
        assert staff.hearing.restore_failed(ref, "late news").stop_reason
        assert staff.ledger.record.corrupt == frozenset()


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


def test_in_shadow_mode_it_is_noted_what_would_have_been_done_and_nothing_is(staff: Staff) -> None:
    staff.steps(0, 9)
    ref = staff.checkpoint(10, good=True)
    staff.steps(10, 14)
    ladder, generation = staff.ledger.record.ladder, staff.ledger.record.generation
    fields = {
        "generation": 1,
        "step": 14,
        "onset": 12,
        "kind": "spike",
        "severity": 14.0,
        "evidence": {"reason": "z 14"},
    }
    staff.hearing.heartbeat(beat(step=14, lines=((1, "incident.shadowed", fields),)))
    noted = data_of(Journal.read(staff.store), "ladder.shadowed")
    assert (noted["kind"], noted["error"], noted["tier"]) == ("spike", "z 14", "resume")
    assert noted["restore"] == {"generation": ref.generation, "step": 10}
    assert "resume from step 10" in str(noted["action"])
    assert (staff.ledger.record.ladder, staff.ledger.record.generation) == (ladder, generation)
