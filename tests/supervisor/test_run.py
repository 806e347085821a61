"""The course of whole runs to their end, or to where a person stops them."""

from __future__ import annotations

import json
import time

import pytest
from tests.support.crew import KILLED, Crew, Place, ask_to_stop, kill, spoil
from tests.support.run_kit import data_of, kinds, written_part

from stormsail.platform.errors import RunExistsError
from stormsail.platform.lease import read_lease
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.open import open_store
from stormsail.platform.tracking import REPORT_KEY
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.phases import RunPhase


class TestAWellBehavedRun:
    def test_it_is_done_with_the_digest_of_its_last_state(self, place: Place) -> None:
        crew = place.drive()
        ledger = crew.supervisor.ledger
        assert (ledger.record.outcome, ledger.record.exit_code, ledger.phase) == ("finished", 0, RunPhase.DONE)
        assert data_of(place.events, "run.finished")["digest"] == ledger.record.commits[-1].digest
        assert place.story == ["run.started", "generation.created", "attempt.started", "run.finished"]

    def test_followers_hear_of_the_end_when_all_is_stored(self, place: Place) -> None:
        ledger = place.drive().supervisor.ledger
        seen = ledger.look((0, 0))
        assert (seen.over, seen.error) == (True, None)
        assert json.loads(open_store(place.address).get(REPORT_KEY))["exit_code"] == 0

    def test_its_lease_is_given_back(self, place: Place) -> None:
        place.drive()
        lease = read_lease(open_store(place.address))
        assert lease is not None
        assert lease.released

    def test_while_it_lives_nobody_else_gets_it(self, place: Place) -> None:
        crew = place.crew()
        with pytest.raises(RunExistsError):
            place.crew("two")
        crew.supervisor.drive()

    def test_a_clock_far_ahead_makes_nothing_look_old(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """What another supervisor may be about to commit is swept by the age that the store says, and no other."""
        store = open_store(place.address)
        part = written_part(store, CheckpointRef(7, 5), 0)
        monkeypatch.setattr(time, "time", lambda: 4e9)
        place.drive()
        assert [store.head(pack.key).size_bytes for pack in part.packs] == [pack.size_bytes for pack in part.packs]
        assert "checkpoint.swept" not in kinds(place.events)

    def test_turned_bits_in_what_all_checkpoints_share_stop_nothing_and_are_told(self, place: Place) -> None:
        place.drive(happenings={(1, 25): ask_to_stop})
        store = open_store(place.address)
        for key in ("format.json", "journal/00000002.json", "lease.json", "series/00000001.jsonl"):
            body = store.get(key)
            store.put(key, body[:20] + bytes([body[20] ^ 0x80]) + body[21:])
        first, second, rest = store.get("series/00000001.jsonl").split(b"\n", 2)
        store.put("series/00000001.jsonl", b"\n".join((first, second[:-9], rest)))  # more than a bit
        assert place.drive("two").supervisor.ledger.record.outcome == "finished"
        assert data_of(place.events, "journal.mended") == {"objects": ["journal/00000002.json"]}
        assert data_of(place.events, "series.damaged")["rows"] == 1
        assert "damaged" in str(data_of(place.events, "format.rewritten")["why"])


class TestStopping:
    def test_a_person_who_asks_gets_a_saved_state_and_exit_code_5(self, place: Place) -> None:
        ledger = place.drive(happenings={(1, 17): ask_to_stop}).supervisor.ledger
        ending = data_of(place.events, "run.stopped")
        assert (ledger.record.outcome, ledger.record.exit_code, ledger.phase) == ("stopped", 5, RunPhase.STOPPED)
        assert (ending["reason"], ending["digest"]) == ("enough", ledger.record.commits[-1].digest)
        assert ledger.record.commits[-1].ref.step == 18

    def test_it_goes_on_later_from_there(self, place: Place) -> None:
        place.drive(happenings={(1, 17): ask_to_stop})
        crew = place.drive("two")
        assert crew.directives[0].restore == CheckpointRef(1, 18)
        assert crew.supervisor.ledger.record.outcome == "finished"
        assert "run.continued" in place.story

    def test_while_it_waits_for_room_it_stops_at_once(self, place: Place) -> None:
        crew = place.crew()
        crew.wait = lambda: ask_to_stop(crew)
        crew.supervisor.drive()
        assert place.story == ["run.started", "generation.created", "stop.requested", "run.stopped"]

    def test_a_fault_meanwhile_starts_no_repair(self, place: Place) -> None:
        def both(crew: Crew) -> AttemptResult:
            ask_to_stop(crew)
            return KILLED

        ledger = place.drive(happenings={(1, 25): both}).supervisor.ledger
        assert place.story[-3:] == ["stop.requested", "fault.detected", "run.stopped"]
        assert (ledger.record.exit_code, ledger.phase) == (5, RunPhase.STOPPED)

    def test_an_incident_meanwhile_starts_no_repair(self, place: Place) -> None:
        def both(crew: Crew) -> None:
            ask_to_stop(crew)
            spoil(crew)

        ledger = place.drive(happenings={(1, 25): both}).supervisor.ledger
        assert "ladder.decided" not in place.story
        assert (ledger.record.exit_code, ledger.phase) == (5, RunPhase.STOPPED)

    def test_between_two_attempts_it_stops_before_the_next(self, place: Place) -> None:
        crew = place.crew(happenings={(1, 25): kill})
        crew.wait = lambda: ask_to_stop(crew) if crew.attempt == 1 else None
        crew.supervisor.drive()
        assert place.story[-2:] == ["stop.requested", "run.stopped"]
        assert place.story.count("attempt.started") == 1

    def test_asking_after_the_end_changes_nothing(self, place: Place) -> None:
        crew = place.drive()
        before = place.story
        ask_to_stop(crew)
        assert place.story == before
