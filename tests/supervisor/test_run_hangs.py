"""The course of whole runs whose ranks stand still, or only seem to."""

from __future__ import annotations

import threading
import time

import pytest
from tests.support.crew import KILLED, Crew, Place
from tests.support.run_kit import beat, data_of, small_config, within

from stormsail.platform.messages import Phase
from stormsail.supervisor.attempt_result import AttemptResult


class TestHangs:
    @pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
    def test_a_rank_that_hangs_ends_the_attempt(self, place: Place) -> None:
        place.config = small_config(cluster={"workers": 2, "step_timeout_s": 3.0})

        def hang(crew: Crew) -> AttemptResult:
            stuck = beat(attempt=crew.attempt, step=crew.step, flight="{}")
            assert within(lambda: bool(crew.supervisor.hearing.heartbeat(stuck).abort))
            return AttemptResult(ok=False, errors={0: "left"})

        crew = place.drive(happenings={(1, 15): hang})
        noted = data_of(place.events, "fault.detected")
        assert noted["kind"] == "hang"
        assert "rank 0 has been in phase step of step 15" in noted["error"]
        evidence = data_of(place.events, "hang.evidence")
        assert [key for key in evidence["keys"] if crew.supervisor._store.get(key)]
        order = place.story
        assert order.index("hang.suspected") < order.index("hang.evidence") < order.index("fault.detected")
        assert crew.supervisor.ledger.record.outcome == "finished"

    def test_a_save_that_takes_longer_than_any_step_may_is_no_hang(self, place: Place) -> None:
        place.config = small_config(cluster={"workers": 2, "step_timeout_s": 0.1})

        def save_for_long(crew: Crew) -> None:
            begun = time.monotonic()
            while time.monotonic() - begun < 1.0:  # ten times the limit of a step, and several looks of the supervisor
                for rank in (0, 1):
                    saving = beat(attempt=crew.attempt, rank=rank, step=crew.step, phase=Phase.SAVE)
                    assert not crew.supervisor.hearing.heartbeat(saving).abort
                threading.Event().wait(0.05)

        ledger = place.drive(happenings={(1, 15): save_for_long}).supervisor.ledger
        assert (ledger.record.outcome, ledger.record.attempt) == ("finished", 1)
        assert not {"hang.suspected", "fault.detected"} & set(place.story)

    def test_a_save_that_does_hang_is_found_by_the_limit_of_its_own_phase(self, place: Place) -> None:
        place.config = small_config(
            cluster={"workers": 2, "step_timeout_s": 300.0, "start_timeout_s": 0.1}, journal={"deadline_s": 0.1}
        )

        def hang(crew: Crew) -> AttemptResult:
            stuck = beat(attempt=crew.attempt, step=crew.step, phase=Phase.SAVE, flight="{}")
            assert within(lambda: bool(crew.supervisor.hearing.heartbeat(stuck).abort))
            return AttemptResult(ok=False, errors={0: "left"})

        place.drive(happenings={(1, 15): hang})
        error = data_of(place.events, "fault.detected")["error"]
        assert "rank 0 has been in phase save of step 15" in error
        assert "the limit is 0 s" in error

    def test_a_worker_that_died_in_a_save_leaves_no_mark_that_restarts_the_run_again(self, place: Place) -> None:
        place.config = small_config(
            cluster={"workers": 2, "step_timeout_s": 300.0, "start_timeout_s": 0.2}, journal={"deadline_s": 0.2}
        )

        def die_saving(crew: Crew) -> AttemptResult:
            for rank in (0, 1):
                crew.supervisor.hearing.heartbeat(
                    beat(attempt=crew.attempt, rank=rank, step=crew.step, phase=Phase.SAVE)
                )
            return KILLED

        def train_for_longer_than_a_save_may_take(crew: Crew) -> None:
            begun = time.monotonic()
            while time.monotonic() - begun < 1.0:
                stepping = beat(attempt=crew.attempt, step=crew.step)
                assert not crew.supervisor.hearing.heartbeat(stepping).abort
                threading.Event().wait(0.05)

        happenings = {(1, 15): die_saving, (2, 30): train_for_longer_than_a_save_may_take}
        ledger = place.drive(happenings=happenings).supervisor.ledger
        assert (ledger.record.outcome, ledger.record.attempt) == ("finished", 2)
        assert place.story.count("attempt.started") == 2
        assert "hang.suspected" not in place.story
