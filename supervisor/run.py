"""The course of one run: lease, attempts, and what follows each, until the run is over.

A plain object: `actor.py` puts it into a Ray actor. It holds no state of its own that matters: all of that is in
the ledger, and so in the journal, and a new supervisor takes over where the old one died.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stormsail.platform.checkpoint.log_place import LogPlace
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.config.dump import parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import (
    ClusterError,
    FencedError,
    InternalError,
    StorageError,
    StormsailError,
)
from stormsail.platform.home import Home
from stormsail.platform.lease import LeaseOwner, RunLease
from stormsail.platform.messages import Directive, FaultKind
from stormsail.platform.storage.open import open_store
from stormsail.supervisor import ending, faults, mirror
from stormsail.supervisor.alerting.desk import AlertDesk
from stormsail.supervisor.answering import Answering
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.committer import SETTLE_S, Committer
from stormsail.supervisor.compacting import Compactor
from stormsail.supervisor.deciding import Decider
from stormsail.supervisor.evidence.collecting import HangCollector, Look
from stormsail.supervisor.hearing import Hearing
from stormsail.supervisor.keeping import Keeper
from stormsail.supervisor.ledger import Ledger, Snapshot, parent_of
from stormsail.supervisor.membership import Membership
from stormsail.supervisor.phases import RunEvent
from stormsail.supervisor.run_spec import RunSpec
from stormsail.supervisor.ticking import LEASE_TTL_S, Ticker
from stormsail.supervisor.writing_report import store_report

_MOST_STARTS_WITHOUT_ROOM = 3


@dataclass(frozen=True, slots=True)
class ClusterHands:
    """What the run needs done in the cluster; `actor.py` does it with Ray, tests without.

    Attributes:
        prepare: Checks the nodes once. Called with (tell).
        wait_for_room: Waits for resources. Called with (config, tell, cancelled); returns early if cancelled.
        run_attempt: Runs the attempt with the given number and blocks until it has ended.
        witness: Looks at worker processes that hang, within so many seconds; answers for each, whatever happens.
        look: Looks after what else the run has in the cluster; called every second with (tell), and never waits.
        clear: Removes that, when the run is over.
    """

    prepare: Callable[[Callable[..., object]], None]
    wait_for_room: Callable[[RunConfig, Callable[..., object], Callable[[], bool]], None]
    run_attempt: Callable[[RunConfig, int], AttemptResult]
    witness: Look
    look: Callable[[Callable[..., object]], None] = lambda _tell: None
    clear: Callable[[], None] = lambda: None


class RunSupervisor:
    """Supervises one run from the thread that calls `drive`.

    Args:
        spec: What to run and where.
        owner: Who this is, for people: host and pid.
        host: Address that workers reach this process at.
        hands: What is done in the cluster.
        log_place: Where the gradient log is; None: in the run's store.
        compactor: Folds checkpoints that stay for long; None folds none.

    Raises:
        StormsailError: The run cannot be opened: it is owned by somebody else, or its storage fails.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        owner: str,
        host: str,
        hands: ClusterHands,
        log_place: LogPlace | None = None,
        compactor: Compactor | None = None,
    ) -> None:
        self.spec = spec
        self.config: RunConfig = parse_dump(spec.config)
        self._hands = hands
        self._owner = owner
        self._store = open_store(spec.store)
        self._lease = RunLease.acquire(
            self._store,
            LeaseOwner.here(spec.owner_id),
            ttl_s=LEASE_TTL_S,
            now=time.time(),
            take_over=spec.take_over,
            run=spec.name,
        )
        self.ledger = Ledger(
            self._store, Path(spec.folder), writer=spec.owner_id, deadline_s=self.config.journal.deadline_s
        )
        self._keeper = Keeper(self.config, self.ledger, self._store, compactor=compactor)
        self._committer = Committer(
            self._store,
            deadline_s=self.config.checkpoint.deadline_s,
            on_commit=self._keeper.committed,
            on_missed=self._keeper.missed,
            parent_of=lambda generation: parent_of(self.ledger.record, generation),
            on_broken=self.call_off,
        )
        self._decider = Decider(
            self.config,
            self.ledger,
            self._store,
            owner=owner,
            stop_step=spec.stop_step,
            on_generation=self._committer.advance,
            changed=bool(spec.changes),
            log_source=log_place,
        )
        self._membership = Membership(host=host, timeout_s=self.config.cluster.start_timeout_s)
        self.answering = Answering(self.config, self.ledger, decider=self._decider, committer=self._committer)
        self.hearing = Hearing(
            self.config,
            self.ledger,
            decider=self._decider,
            answering=self.answering,
            keeper=self._keeper,
            committer=self._committer,
            membership=self._membership,
        )
        self._collector = HangCollector(
            self.ledger,
            self.hearing,
            self._store,
            Path(spec.folder),
            members=self._membership.members,
            look=hands.witness,
            limit_s=self.config.hang.evidence_s,
            shadow=self.config.ladder.shadow,
        )
        self._ticker = Ticker(
            self.ledger,
            self._lease,
            look=partial(hands.look, self.ledger.note),
            watch=self._collector.watch,
            on_lost=self.call_off,
        )
        self._mirror: mirror.MirrorProcess | None = None
        self._desk: AlertDesk | None = None
        self._starts_without_room = 0

    # ---------------------------------------------------------------------- course

    def drive(self) -> None:
        """Run to the end. Call it from a thread of its own; only bugs come out as exceptions."""
        try:
            if not self._was_over():
                self._begin()
                self._course()
        except StormsailError as error:
            ending.give_up(self.ledger, error)
        finally:
            self._close()

    def _was_over(self) -> bool:
        """Whether Ray has restarted a supervisor that had ended the run; one that was asked to stop still is."""
        record = self.ledger.record
        if record.claim != self.spec.owner_id:
            return False
        if record.stop_requested and not record.outcome:
            self.ledger.stop_reason = record.stop_requested
            self.ledger.move(RunEvent.STOP_ASKED)
        return bool(record.outcome)

    def _begin(self) -> None:
        self._ticker.start()
        kind = "run.started" if self.ledger.is_new else "run.continued"
        self.ledger.note(
            kind,
            config=self.spec.config,
            owner=self._owner,
            stop_step=self.spec.stop_step,
            changes=list(self.spec.changes),
            claim=self.spec.owner_id,
            durable=True,
        )
        if self.ledger.mended:
            self.ledger.note("journal.mended", objects=list(self.ledger.mended))
        if self.ledger.damaged_rows:
            rows = self.ledger.damaged_rows
            self.ledger.note("series.damaged", rows=len(rows), first=rows[0])
        damage = ensure_format(self._store)
        if damage:
            self.ledger.note("format.rewritten", why=damage)
        self._keeper.adopt()
        self._keeper.sweep(
            self._lease.stored_s
        )  # by the clock that dates litter: with another, what is young looks old
        settings = mirror.settings_for(self.config, self.spec.store, Home.here())
        if self.config.alerts.channels:
            self._desk = AlertDesk(self.config.alerts, self.ledger, Path(self.spec.folder), run=self.spec.name)
        if settings is not None:
            log = Path(self.spec.folder) / "logs" / "mlflow.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            self._mirror = mirror.MirrorProcess(settings, log=log, tell=self.ledger.note)

    def _course(self) -> None:
        self._hands.prepare(self.ledger.note)
        directive: Directive | None = self._decider.start()
        while directive is not None:
            self._hands.wait_for_room(self.config, self.ledger.note, self._is_called_off)
            self._check_fence()
            if not self._go_on(RunEvent.RESOURCES_READY):
                return
            directive = self._attempt(directive)

    def _is_called_off(self) -> bool:
        return bool(self.ledger.stop_reason) or self.ledger.error is not None

    def _check_fence(self) -> None:
        """What a thread has found out holds for all: another supervisor writes this run's journal, or a thread broke."""
        if self.ledger.error is not None:
            raise self.ledger.error

    def _go_on(self, event: RunEvent) -> bool:
        """Move the phase, unless a person has asked to stop meanwhile: then the run ends here."""
        with self.ledger.lock:
            if not self.ledger.stop_reason:
                self.ledger.move(event)
                return True
        ending.stop(self.ledger, self.ledger.position)
        return False

    def _attempt(self, directive: Directive) -> Directive | None:
        """Run one attempt. Returns what the next one is to do, or None if the run is over."""
        attempt = self.ledger.record.attempt + 1
        self.ledger.note("attempt.started", attempt=attempt, workers=self.config.cluster.workers)
        self.hearing.begin(attempt)
        self._membership.expect(attempt=attempt, generation=directive.generation, workers=self.config.cluster.workers)
        result = self._hands.run_attempt(self.config, attempt)
        self.hearing.end()
        self._check_fence()
        self._committer.settle(SETTLE_S)
        if self.ledger.record.outcome:
            return None
        if result.ok and self._ended_as_asked():
            self._ended_well()
            return None
        if result.no_room and not self.ledger.stop_reason:
            return self._without_room(directive, result)
        self._starts_without_room = 0
        return self._failed(result)

    def _without_room(self, directive: Directive, result: AttemptResult) -> Directive:
        """Somebody else took the room between the check and the start: no fault of this run, and no tier."""
        self._starts_without_room += 1
        why = "; ".join(result.errors.values())
        self.ledger.note("resources.lost", step=self.ledger.position, why=why, times=self._starts_without_room)
        self.ledger.move(RunEvent.RESOURCES_LOST)
        if self._starts_without_room == _MOST_STARTS_WITHOUT_ROOM:
            raise ClusterError(
                f"the room for {self.config.cluster.workers} workers was gone {self._starts_without_room} times "
                f"when they were to start: {why}",
                where="cluster",
                todo="give this run nodes of its own, or lower cluster.workers or cluster.cpus_per_worker",
            )
        return directive

    def _failed(self, result: AttemptResult) -> Directive | None:
        """An attempt broke off: find the first cause, and ask what to do about it."""
        self.ledger.move(RunEvent.FAULT)
        self._keeper.recheck()
        fault = faults.describe(
            result,
            self.hearing.failures,
            step=self.ledger.position,
            now_s=time.time(),
            hang=self.hearing.abort,
            stuck=self.hearing.stuck_rank,
        )
        self.ledger.note(
            "fault.detected",
            step=fault.step,
            kind=str(fault.kind),
            rank=fault.rank,
            onset=fault.step,
            error=fault.error,
            details=fault.details,
            fault_time_s=self.hearing.fired_s if fault.kind is FaultKind.PROCESS else None,
        )
        directive = self._decider.decide(fault.for_ladder(), fault)
        if self.ledger.record.outcome:
            return None
        return directive if self._go_on(RunEvent.RESTART) else None

    def _ended_as_asked(self) -> bool:
        """Whether rank 0 said how its loop ended, and that was the last step or what a person had asked for."""
        outcome = self.hearing.loop_end.get("outcome")
        return outcome == "done" or (outcome == "stopped" and bool(self.ledger.stop_reason))

    def _ended_well(self) -> None:
        self._committer.drain(self.config.checkpoint.deadline_s)
        end = self.hearing.loop_end
        if end["outcome"] == "stopped":
            ending.stop(self.ledger, int(end["step"]))
        else:
            ending.finish(self.ledger, int(end["step"]), applied=int(end["applied"]), where=self.spec.store.url)

    def _close(self) -> None:
        self._committer.close()
        self._collector.close(self.config.hang.evidence_s)
        if self._desk is not None:
            self._desk.close()
        fenced = isinstance(self.ledger.error, FencedError)
        if not fenced:  # otherwise the vaults are another supervisor's by now
            self._hands.clear()
        steps = [] if self._mirror is None else [self._mirror.close]
        if not fenced:
            steps = [self._store_all, *steps, self._ticker.release]
        for step in steps:
            try:
                step()
            except StorageError as error:
                self.ledger.error = self.ledger.error or error
        self.ledger.over.set()

    def _store_all(self) -> None:
        self.ledger.flush(self.config.journal.deadline_s)
        store_report(self._store)

    # --------------------------------------------------------------------- people

    def look(self, cursor: tuple[int, int]) -> Snapshot:
        """See `Ledger.look`; also what the run waits for."""
        return replace(self.ledger.look(cursor), waiting=self.hearing.waiting())

    def request_stop(self, reason: str) -> None:
        """Stop at the next step, on all ranks alike, saving state."""
        if not self.ledger.phase.terminal:
            self.ledger.stop_reason = reason  # at once: the lock may be held by a decision that waits for the store
        with self.ledger.lock:
            if self.ledger.phase.terminal:
                return
            self.ledger.note("stop.requested", reason=reason)
            self.ledger.move(RunEvent.STOP_ASKED)

    # --------------------------------------------------------------------- threads

    def call_off(self, error: Exception) -> None:
        """A thread has found that the run must not go on here: it is another supervisor's, or the thread has a bug."""
        if not isinstance(error, FencedError):
            traceback.print_exception(error)
            error = InternalError(f"{type(error).__name__}: {error}", where="supervisor")
        self.ledger.error = error
        self.hearing.abort = self.hearing.abort or str(error)
