"""The course of whole runs that have more than one supervisor, one after the other or at once."""

from __future__ import annotations

import threading

from tests.support.crew import KILLED, Crew, Place
from tests.support.run_kit import LIMIT_S, within

from stormsail.platform.errors import ClusterError, FencedError
from stormsail.platform.lease import read_lease
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.open import open_store
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.phases import RunPhase


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
