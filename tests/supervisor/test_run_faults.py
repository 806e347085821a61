"""The course of whole runs in which something goes wrong."""

from __future__ import annotations

import json

from tests.support.crew import STEPS, Crew, Place, kill, spoil
from tests.support.run_kit import checkpoint_meta, data_of, small_config, written_part

from stormsail.platform.messages import CheckpointRef, WorkerFailure
from stormsail.platform.storage.open import open_store
from stormsail.platform.tracking import REPORT_KEY
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.phases import RunPhase


class TestFaults:
    def test_a_lost_process_costs_one_attempt(self, place: Place) -> None:
        crew = place.drive(happenings={(1, 25): kill})
        assert crew.directives[-1].restore == CheckpointRef(1, 20)
        assert place.story == [
            "run.started",
            "generation.created",
            "attempt.started",
            "fault.detected",
            "ladder.decided",
            "generation.created",
            "attempt.started",
            "recovery.first_step",
            "recovery.caught_up",
            "episode.closed",
            "run.finished",
        ]
        assert crew.supervisor.ledger.record.outcome == "finished"

    def test_a_spike_is_healed_without_another_attempt(self, place: Place) -> None:
        crew = place.drive(happenings={(1, 25): spoil})
        assert crew.supervisor.ledger.record.attempt == 1
        assert crew.supervisor.ledger.record.outcome == "finished"

    def test_spikes_that_come_again_and_again_use_the_ladder_up(self, place: Place) -> None:
        def again(crew: Crew) -> None:
            spoil(crew)
            crew.happenings[1, 25] = again

        ledger = place.drive(happenings={(1, 25): again}).supervisor.ledger
        assert (ledger.record.outcome, ledger.record.exit_code) == ("exhausted", 4)
        assert ledger.phase is RunPhase.EXHAUSTED
        assert place.story.count("ladder.decided") == 4

    def test_a_run_that_is_to_stop_at_anomalies_ends_with_its_evidence_and_all_it_had(self, place: Place) -> None:
        place.config = small_config(ladder={"on_anomaly": "stop"})
        ledger = place.drive(happenings={(1, 25): spoil}).supervisor.ledger
        assert (ledger.record.outcome, ledger.record.exit_code) == ("exhausted", 4)
        assert place.story[-3:] == ["fault.detected", "ladder.decided", "run.exhausted"]
        noted = data_of(place.events, "fault.detected")
        assert (noted["kind"], noted["onset"]) == ("spike", 25)
        ending = data_of(place.events, "run.exhausted")
        assert "ladder.on_anomaly" in ending["reason"]
        assert (ending["why"], ending["tried"]) == ("ladder.on_anomaly is `stop`; a person must look", False)
        report = json.loads(open_store(place.address).get(REPORT_KEY))
        assert (report["exit_code"], len(report["incidents"])) == (4, 1)
        assert CheckpointRef(1, 20) in {candidate.ref for candidate in ledger.candidates()}

    def test_such_a_run_still_survives_a_lost_process(self, place: Place) -> None:
        place.config = small_config(ladder={"on_anomaly": "stop"})
        assert place.drive(happenings={(1, 25): kill}).supervisor.ledger.record.outcome == "finished"

    def test_an_error_of_the_users_code_before_the_first_step_ends_the_run_with_its_traceback(
        self, place: Place
    ) -> None:
        def typo(crew: Crew) -> AttemptResult:
            failure = WorkerFailure(crew.attempt, 0, -1, "user", "NameError: typo", "Traceback", 6, 1.0)
            crew.supervisor.hearing.worker_failed(failure)
            return AttemptResult(ok=False, errors={0: "NameError: typo"})

        ledger = place.drive(happenings={(1, 0): typo}).supervisor.ledger
        assert (ledger.record.outcome, ledger.record.exit_code) == ("failed", 6)
        assert data_of(place.events, "run.failed")["details"] == "Traceback"
        assert place.story.count("attempt.started") == 1

    def test_room_that_was_gone_when_the_workers_were_to_start_costs_no_tier(self, place: Place) -> None:
        def no_room(crew: Crew) -> AttemptResult:
            crew.directives.pop()
            return AttemptResult(ok=False, errors={-1: "no placement group"}, no_room=True)

        ledger = place.drive(happenings={(1, 0): no_room, (2, 0): no_room}).supervisor.ledger
        assert ledger.record.outcome == "finished"
        assert ledger.record.attempt == 3
        assert place.story.count("resources.lost") == 2
        assert "ladder.decided" not in place.story

    def test_room_that_is_gone_again_and_again_ends_the_wait(self, place: Place) -> None:
        gone = AttemptResult(ok=False, errors={-1: "no placement group"}, no_room=True)
        ledger = place.drive(happenings={(attempt, 0): lambda _crew: gone for attempt in (1, 2, 3)}).supervisor.ledger
        assert ledger.record.exit_code == 75
        assert "was gone 3 times" in str(ledger.error)

    def test_workers_that_end_without_a_word_have_not_finished(self, place: Place) -> None:
        crew = place.drive(silent=True)
        assert data_of(place.events, "fault.detected")["error"] == "the attempt ended without a word"
        assert crew.directives[-1].restore == CheckpointRef(1, STEPS)
        assert crew.supervisor.ledger.record.outcome == "finished"

    def test_a_damaged_checkpoint_is_passed_over(self, place: Place) -> None:
        def damaged(crew: Crew) -> None:
            ref = crew.directive.restore
            assert ref is not None
            crew.obey(crew.supervisor.answering.restore_failed(ref, "torn"))

        crew = place.drive(happenings={(1, 25): kill, (2, 20): damaged})
        assert crew.directives[-1].restore == CheckpointRef(1, 10)
        assert crew.supervisor.ledger.record.outcome == "finished"

    def test_a_save_that_lacks_a_rank_is_missed_and_the_run_goes_on(self, place: Place) -> None:
        def half(crew: Crew) -> None:
            part = written_part(crew.supervisor._store, CheckpointRef(1, 5), 0, world_size=2)
            crew.supervisor.hearing.part_written(part, checkpoint_meta(5, 2), 0.1)

        crew = place.drive(happenings={(1, 5): half, (1, 25): kill})
        assert data_of(place.events, "checkpoint.missed")["why"].startswith("the run moved on")
        assert crew.supervisor.ledger.record.outcome == "finished"
