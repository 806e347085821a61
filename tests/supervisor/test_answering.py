"""What rank 0 asks is answered once, and only in the attempt that is under way."""

from __future__ import annotations

import pytest
from tests.support.run_kit import (
    Staff,
    beat,
    checkpoint_meta,
    data_of,
    lose_process_with_log,
    small_config,
    spike,
    written_part,
)

from stormsail.platform.config.model import RunConfig
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef, LogSpan, Tier
from stormsail.supervisor.phases import RunEvent


class TestIncidents:
    def test_an_incident_is_journalled_with_its_evidence_before_the_decision(self, staff: Staff) -> None:
        staff.steps(0, 9)
        directive = staff.answering.incident(spike(9))
        assert [kind for kind in staff.journal if kind != "run.started"][-3:] == [
            "fault.detected",
            "ladder.decided",
            "generation.created",
        ]
        assert data_of(Journal.read(staff.store), "fault.detected")["evidence"]["reason"] == "loss z 14.2"
        assert (directive.generation, directive.tier) == (2, Tier.RESUME)

    def test_an_older_generation_is_refused(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.answering.incident(spike(9))
        before = staff.journal
        assert staff.answering.incident(spike(9)).stop_reason
        assert staff.journal == before

    def test_what_is_just_being_published_counts_for_the_decision(self, staff: Staff) -> None:
        staff.steps(0, 12)
        staff.hearing.part_written(written_part(staff.store, CheckpointRef(1, 10), 0), checkpoint_meta(10), 0.1)
        staff.ledger.note("checkpoint.good", step=10, generation=1)
        assert staff.answering.incident(spike(12)).restore == CheckpointRef(1, 10)

    def test_an_incident_while_a_person_waits_for_the_end_ends_the_loop(self, staff: Staff) -> None:
        staff.steps(0, 9)
        staff.ledger.stop_reason = "enough"
        staff.ledger.move(RunEvent.STOP_ASKED)
        assert staff.answering.incident(spike(9)).stop_reason == "enough"
        assert "ladder.decided" not in staff.journal

    def test_a_checkpoint_that_cannot_be_loaded_is_never_taken_again(self, staff: Staff) -> None:
        staff.steps(0, 22)
        refs = [staff.checkpoint(step, good=True) for step in (10, 20)]
        first = staff.answering.incident(spike(22))
        assert first.restore == refs[1]
        again = staff.answering.restore_failed(refs[1], "a frame is damaged")
        assert again.restore == refs[0]
        assert staff.ledger.record.corrupt == {refs[1]}
        assert data_of(Journal.read(staff.store), "checkpoint.corrupt")["problem"] == "a frame is damaged"


class TestGradientLog:
    @pytest.fixture
    def config(self) -> RunConfig:
        return small_config(checkpoint={"gradient_log": "store"})

    @pytest.fixture(autouse=True)
    def _lost(self, staff: Staff) -> None:
        lose_process_with_log(staff)

    def test_a_log_that_was_refused_is_noted_and_its_steps_are_computed(self, staff: Staff) -> None:
        answer = staff.answering.replay_failed(2, 13, "damaged")
        assert (answer.generation, answer.restore, answer.replay) == (3, CheckpointRef(1, 10), (LogSpan(1, 10, 13),))
        noted = data_of(Journal.read(staff.store), "log.refused")
        assert (noted["generation"], noted["problem"]) == (2, "damaged")
        assert staff.answering.replay_failed(3, 10, "damaged too").replay == ()

    def test_an_older_generation_is_not_heard(self, staff: Staff) -> None:
        assert staff.answering.replay_failed(1, 13, "late news").stop_reason


def test_an_incident_that_comes_too_late_starts_no_second_decision(staff: Staff) -> None:
    staff.steps(0, 9)
    staff.hearing.end()
    generation = staff.ledger.record.generation
    assert staff.answering.incident(spike(9)).stop_reason == "an older generation asked"
    assert staff.ledger.record.generation == generation


def test_a_checkpoint_that_nobody_is_loading_is_not_blamed(staff: Staff) -> None:
    staff.steps(0, 9)
    ref = staff.checkpoint(10, good=True)
    assert staff.answering.restore_failed(ref, "late news").stop_reason
    assert staff.ledger.record.corrupt == frozenset()


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
