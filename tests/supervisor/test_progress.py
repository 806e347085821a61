"""Finished steps are taken up once, and move what hangs on them: phase, ladder, known-good states, speed."""

from __future__ import annotations

import pytest
from tests.support.run_kit import Staff, beat, data_of, lose_process_with_log, small_config, spike, step_row

from stormsail.platform.config.model import RunConfig
from stormsail.platform.journal import Journal
from stormsail.platform.messages import Tier
from stormsail.supervisor.phases import RunPhase


def phase_of(staff: Staff) -> RunPhase:
    return staff.ledger.phase


def test_the_first_step_moves_the_phase(staff: Staff) -> None:
    assert phase_of(staff) is RunPhase.STARTING
    staff.steps(0, 0)
    assert phase_of(staff) is RunPhase.RUNNING


def test_a_run_that_becomes_slow_as_a_whole_is_noted_once_and_so_is_its_end(staff: Staff) -> None:
    now = 1e6
    for step in range(200):
        now += 1.0 if 80 <= step < 140 else 0.2
        staff.hearing.heartbeat(beat(step=step, rows=(step_row(step, time_s=now),)))
    kinds = staff.journal
    assert (kinds.count("throughput.collapsed"), kinds.count("throughput.recovered")) == (1, 1)


def test_rows_of_an_older_generation_are_ignored(staff: Staff) -> None:
    staff.steps(0, 9)
    staff.answering.incident(spike(9))
    staff.hearing.heartbeat(beat(generation=1, rows=(step_row(10, generation=1),)))
    assert staff.ledger.highest == 9


def test_a_step_with_a_dropped_update_or_a_flag_is_not_healthy(staff: Staff) -> None:
    staff.hearing.heartbeat(beat(rows=(step_row(0), step_row(1, outcome="dropped"), step_row(2, flagged=True))))
    assert staff.ledger.record.ladder.healthy_steps == 1


def test_healthy_steps_make_a_checkpoint_good(staff: Staff) -> None:
    staff.steps(0, 9)
    ref = staff.checkpoint(10)
    staff.steps(10, 10)
    assert ref not in staff.ledger.record.good
    staff.steps(11, 11)
    assert ref in staff.ledger.record.good


class TestRecovery:
    def test_the_first_step_and_the_first_new_ground_after_a_repair_are_noted(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.answering.incident(spike(9))
        staff.steps(0, 9)
        assert staff.journal[-1] == "recovery.first_step"
        staff.steps(10, 10)
        assert "recovery.caught_up" in staff.journal

    def test_fp32_steps_of_tier_3_are_a_phase_of_their_own(self, staff: Staff) -> None:
        staff.steps(0, 9)
        tiers = [staff.answering.incident(spike(9, generation=generation)).tier for generation in (1, 2, 3)]
        assert tiers == [Tier.RESUME, Tier.ROLLBACK, Tier.FP32_REPLAY]
        staff.steps(0, 3, precision="fp32")
        assert phase_of(staff) is RunPhase.REPLAYING
        line = (1, "replay.finished", {"step": 20, "window_dtype": "float32", "precision": "bf16", "took_s": 0.1})
        staff.hearing.heartbeat(beat(lines=(line,)))
        assert phase_of(staff) is RunPhase.RUNNING
        assert data_of(Journal.read(staff.store), "replay.finished")["steps"] == 4


class TestGradientLog:
    @pytest.fixture
    def config(self) -> RunConfig:
        return small_config(checkpoint={"gradient_log": "store"})

    def test_only_rows_that_were_lost_are_taken_up_and_none_counts_as_progress(self, staff: Staff) -> None:
        """Steps 15 and 16 were computed and logged, but the process died before anybody heard of them."""
        lose_process_with_log(staff)
        rows = tuple(step_row(step, generation=2) for step in range(10, 17))
        staff.hearing.heartbeat(beat(generation=2, step=17, rows=rows))
        assert [row.step for row in staff.ledger.look((0, 0)).rows] == list(range(17))
        assert staff.ledger.record.ladder.completed == -1
        assert staff.ledger.phase is RunPhase.RECOVERING
        assert staff.ledger.position == 17
