"""The course of whole runs, with workers played in this process: they say what real ones say, through the same methods."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_kit import (
    LIMIT_S,
    beat,
    checkpoint_meta,
    data_of,
    join_request,
    kinds,
    small_config,
    step_row,
    within,
    written_part,
)

from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ClusterError, FencedError, RunExistsError
from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.lease import read_lease
from stormsail.platform.messages import CheckpointRef, Directive, FaultKind, Incident, Phase, WorkerFailure
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.platform.tracking import REPORT_KEY
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.evidence.found import Found
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.phases import RunPhase
from stormsail.supervisor.run import ClusterHands, RunSupervisor
from stormsail.supervisor.run_spec import RunSpec

STEPS = 40
KILLED = AttemptResult(ok=False, errors={1: "died"}, died=(1,))
ENDED = AttemptResult(ok=True, errors={})

Happening = Callable[["Crew"], AttemptResult | None]


@dataclass
class Crew:
    """Plays all workers of all attempts of one supervisor.

    Attributes:
        happenings: What goes wrong just before a step is done, by (attempt, step).
        directives: All that were obeyed, in order.
    """

    config: RunConfig
    happenings: dict[tuple[int, int], Happening] = field(default_factory=dict)
    directives: list[Directive] = field(default_factory=list)
    prepare: Callable[[], None] = lambda: None
    wait: Callable[[], None] = lambda: None
    silent: bool = False
    supervisor: RunSupervisor = field(init=False)
    attempt: int = 0
    step: int = 0

    def hands(self) -> ClusterHands:
        return ClusterHands(
            prepare=lambda _tell: self.prepare(),
            wait_for_room=lambda _config, _tell, _cancelled: self.wait(),
            run_attempt=self.run_attempt,
            witness=lambda targets, _limit_s: [Found(t.rank, "S (sleeping)", "", "", "none", "") for t in targets],
        )

    def run_attempt(self, config: RunConfig, attempt: int) -> AttemptResult:
        self.attempt = attempt
        workers = range(config.cluster.workers)
        for rank in workers:
            self.supervisor.hearing.join(join_request(rank, attempt=attempt))
        placement = self.supervisor.hearing.placement(attempt, 0)
        assert placement is not None
        self.obey(placement.directive)
        return self._steps()

    def _steps(self) -> AttemptResult:
        while self.step < STEPS and not self.directive.stop_reason:
            happens = self.happenings.pop((self.attempt, self.step), None)
            result = happens(self) if happens is not None else None
            if result is not None:
                return result
            if happens is not None:
                continue
            reply = self.do_step()
            if reply.abort:
                return AttemptResult(ok=False, errors={-1: "left"})
            if self.step % 10 == 0 or reply.stop_requested:
                self.save()
            if reply.stop_requested:
                return self.end("stopped")
        return self.end("stopped" if self.directive.stop_reason else "done")

    @property
    def directive(self) -> Directive:
        return self.directives[-1]

    def obey(self, directive: Directive) -> None:
        self.directives.append(directive)
        self.step = directive.restore.step if directive.restore else 0

    def do_step(self) -> Any:
        row = step_row(self.step, generation=self.directive.generation, precision=self.directive.precision)
        self.step += 1
        return self.supervisor.hearing.heartbeat(
            beat(attempt=self.attempt, step=row.step, generation=row.generation, rows=(row,))
        )

    def save(self) -> None:
        ref = CheckpointRef(self.directive.generation, self.step)
        for rank in range(2):
            part = written_part(self.supervisor._store, ref, rank, world_size=2, seed=self.step)
            meta = checkpoint_meta(self.step, 2) if rank == 0 else None
            self.supervisor.hearing.part_written(part, meta, 0.1)

    def end(self, outcome: str) -> AttemptResult:
        line = (1, "loop.ended", {"outcome": outcome, "step": self.step, "applied": self.step})
        if not self.silent:
            self.supervisor.hearing.heartbeat(beat(attempt=self.attempt, step=self.step, lines=(line,)))
        self.silent = False
        return ENDED


@dataclass
class Place:
    """Where the run of a test lives."""

    folder: Path
    config: RunConfig = field(default_factory=lambda: small_config(journal={"deadline_s": LIMIT_S}))

    @property
    def address(self) -> StoreAddress:
        return StoreAddress(f"file://{self.folder}/store")

    def crew(self, owner_id: str = "one", **more: Any) -> Crew:
        """A crew with its supervisor."""
        made = Crew(self.config, **more)
        spec = RunSpec(
            actor="run:run",
            name="run",
            config=dump_config(self.config),
            store=self.address,
            folder=str(self.folder / "local"),
            ray_path=str(self.folder / "ray"),
            import_paths=(),
            version="1",
            owner_id=owner_id,
        )
        made.supervisor = RunSupervisor(spec, owner=owner_id, host="127.0.0.1", hands=made.hands())
        return made

    def drive(self, owner_id: str = "one", **more: Any) -> Crew:
        """Run to the end."""
        crew = self.crew(owner_id, **more)
        crew.supervisor.drive()
        return crew

    @property
    def events(self) -> list[Event]:
        return Journal.read(open_store(self.address))

    @property
    def story(self) -> list[str]:
        """What happened, without what happens again and again."""
        return kinds(self.events, without=("checkpoint.committed", "checkpoint.good", "world.formed"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    named = ("stormsail-tick", "stormsail-committer", "stormsail-evidence")
    assert within(lambda: not [t for t in threading.enumerate() if t.name in named])


def kill(_crew: Crew) -> AttemptResult:
    return KILLED


def spoil(crew: Crew) -> None:
    """Rank 0 reports a spike and all obey the answer."""
    incident = Incident(crew.directive.generation, crew.step, crew.step, FaultKind.SPIKE, 14.0, {"reason": "z 14"})
    crew.obey(crew.supervisor.answering.incident(incident))


def ask_to_stop(crew: Crew) -> None:
    crew.supervisor.request_stop("enough")


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


class TestOtherSupervisors:
    def test_a_cluster_without_room_ends_the_run_with_75_and_a_later_one_goes_on(self, place: Place) -> None:
        def nothing() -> None:
            raise ClusterError("no room", todo="add nodes")

        ledger = place.drive(prepare=nothing).supervisor.ledger
        assert (ledger.record.outcome, ledger.record.exit_code, ledger.phase) == ("failed", 75, RunPhase.FAILED)
        assert isinstance(ledger.error, ClusterError)
        assert place.drive("two").supervisor.ledger.record.outcome == "finished"

    def test_one_that_ray_starts_again_goes_on_where_the_old_one_died(self, place: Place) -> None:
        """The old one is not let to clean up: it hangs in the middle of its attempt while the next one works."""
        dead = threading.Event()

        def die(_crew: Crew) -> AttemptResult:
            dead.wait(LIMIT_S)
            return KILLED

        old = place.crew(happenings={(1, 25): die})
        thread = threading.Thread(target=old.supervisor.drive, daemon=True)
        thread.start()
        assert within(lambda: len(old.supervisor.ledger.record.commits) == 2 and old.step == 25)
        new = place.drive()
        assert new.directives[0].restore == CheckpointRef(1, 20)
        assert [step for step, _ in new.directives[0].expected_losses] == []
        assert new.supervisor.ledger.record.attempt == 2
        assert new.supervisor.ledger.record.outcome == "finished"
        finished = place.story
        dead.set()
        thread.join(LIMIT_S)
        assert isinstance(old.supervisor.ledger.error, FencedError)
        assert place.story == finished

    def test_one_that_was_replaced_in_the_journal_writes_nothing_more_and_keeps_the_lease_alone(
        self, place: Place
    ) -> None:
        def replaced(crew: Crew) -> None:
            for number in range(20):  # a checkpoint that is committed in this moment would keep the rival out
                folder = place.folder / f"rival-{number}"
                try:
                    rival = Ledger(crew.supervisor._store, folder, writer="rival", deadline_s=LIMIT_S)
                    rival.note("run.continued", config="{}", stop_step=None)
                except FencedError:
                    continue
                return
            raise AssertionError("no gap in the journal was found")

        crew = place.drive(happenings={(1, 15): replaced})
        assert isinstance(crew.supervisor.ledger.error, FencedError)
        assert place.story[-1] == "run.continued"
        lease = read_lease(open_store(place.address))
        assert lease is not None
        assert not lease.released

    def test_one_that_lost_its_lease_starts_no_other_attempt(self, place: Place) -> None:
        def lost(crew: Crew) -> AttemptResult:
            crew.supervisor.ledger.error = FencedError("taken over")  # as the thread that renews it would find
            return KILLED

        crew = place.drive(happenings={(1, 15): lost})
        assert isinstance(crew.supervisor.ledger.error, FencedError)
        assert place.story == ["run.started", "generation.created", "attempt.started"]
