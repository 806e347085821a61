"""The course of one run: lease, attempts, and what follows each, until the run is over.

A plain object: `actor.py` puts it into a Ray actor. It holds no state of its own that matters: all of that is in
the ledger, and so in the journal, and a new supervisor takes over where the old one died.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
    StorageUnavailableError,
    StormsailError,
)
from stormsail.platform.home import Home
from stormsail.platform.lease import LeaseOwner, RunLease
from stormsail.platform.messages import Directive, FaultKind
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import faults, mirror
from stormsail.supervisor.alerting.desk import AlertDesk
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.committer import Committer
from stormsail.supervisor.compacting import Compactor
from stormsail.supervisor.deciding import Decider
from stormsail.supervisor.evidence.collecting import HangCollector, Look
from stormsail.supervisor.hearing import SETTLE_S, Hearing
from stormsail.supervisor.keeping import Keeper
from stormsail.supervisor.ledger import Ledger, Snapshot, parent_of
from stormsail.supervisor.membership import Membership
from stormsail.supervisor.phases import RunEvent
from stormsail.supervisor.watch import outage
from stormsail.supervisor.writing_report import store_report

LEASE_TTL_S = 30.0
_TICK_S = 1.0
_FLUSH_EVERY_S = 5.0
_MOST_STARTS_WITHOUT_ROOM = 3


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a supervisor is started with; the rest it finds in the journal.

    Attributes:
        actor: Its own actor name.
        name: The run's name.
        config: Configuration as dumped JSON.
        store: The run's store.
        folder: The run's local folder: logs, the journal's local file, Ray's own files.
        ray_path: Where Ray keeps its files; shared by all nodes if there are several.
        import_paths: Folders that the user's modules are imported from.
        version: Version of the package, which every node must have.
        owner_id: Names this claim on the run; a supervisor that Ray restarts is the same owner.
        changes: What the configuration changed against the stored one, for the journal.
        stop_step: Step to end at instead of `train.steps`, or None.
        take_over: Whether an expired lease may be taken over.
        env: Variables for the run's processes that Ray's own environment does not hold.
    """

    actor: str
    name: str
    config: str
    store: StoreAddress
    folder: str
    ray_path: str
    import_paths: tuple[str, ...]
    version: str
    owner_id: str
    changes: tuple[str, ...] = ()
    stop_step: int | None = None
    take_over: bool = False
    env: dict[str, str] = field(default_factory=dict)


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
            on_broken=self.broke,
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
        self.hearing = Hearing(
            self.config,
            self.ledger,
            decider=self._decider,
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
        self._mirror: mirror.MirrorProcess | None = None
        self._desk: AlertDesk | None = None
        self._outage = outage.Outage()
        self._starts_without_room = 0
        self._lease_lock = threading.Lock()

    # ---------------------------------------------------------------------- course

    def drive(self) -> None:
        """Run to the end. Call it from a thread of its own; only bugs come out as exceptions."""
        try:
            if not self._was_over():
                self._begin()
                self._course()
        except StormsailError as error:
            self._give_up(error)
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
        threading.Thread(target=self._tick_on, name="stormsail-tick", daemon=True).start()
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
        self._keeper.sweep(time.time())
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
        self._stopped(self.ledger.position)
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
        step = int(self.hearing.loop_end["step"])
        if self.hearing.loop_end["outcome"] == "stopped":
            self._stopped(step)
            return
        applied, digest = int(self.hearing.loop_end["applied"]), self._digest_at(step)
        if digest is None:
            self.ledger.note("run.unsaved", step=step, applied=applied)
            raise StorageUnavailableError(
                f"all steps are done, but the state of step {step} could not be saved",
                where=self.spec.store.url,
                todo="the same command goes on from the newest checkpoint and saves it",
            )
        self.ledger.note("run.finished", step=step, applied=applied, digest=digest, exit_code=0)
        self.ledger.move(RunEvent.FINISHED)

    def _stopped(self, step: int) -> None:
        saved = self.ledger.candidates()
        self.ledger.note(
            "run.stopped",
            step=step,
            saved_step=saved[-1].ref.step if saved else 0,
            reason=self.ledger.stop_reason,
            digest=self._digest_at(step),
            exit_code=5,
            durable=True,
        )
        with self.ledger.lock:
            if not self.ledger.phase.terminal:  # asking twice changes nothing, and the request may not be noted yet
                self.ledger.move(RunEvent.STOP_ASKED)
            if not self.ledger.phase.terminal:
                self.ledger.move(RunEvent.ENDED)

    def _digest_at(self, step: int) -> str | None:
        """The digest of the newest checkpoint, if it is the one of this step."""
        newest = max(self.ledger.candidates(), key=lambda item: (item.ref.step, item.ref.generation), default=None)
        if newest is None or newest.ref.step != step:
            return None
        return next(commit.digest for commit in self.ledger.record.commits if commit.ref == newest.ref)

    def _give_up(self, error: StormsailError) -> None:
        """The supervisor itself cannot go on: say why, keep everything."""
        self.ledger.error = error
        if isinstance(error, FencedError) or self.ledger.record.outcome:
            return
        with contextlib.suppress(StorageError):  # whoever follows the run hears of `error`; the journal cannot
            self.ledger.note("run.failed", error=str(error), exit_code=error.exit_code)
        if not self.ledger.phase.terminal:
            self.ledger.move(RunEvent.GAVE_UP)

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
            steps = [self._store_all, *steps, self._release]
        for step in steps:
            try:
                step()
            except StorageError as error:
                self.ledger.error = self.ledger.error or error
        self.ledger.over.set()

    def _store_all(self) -> None:
        self.ledger.flush(self.config.journal.deadline_s)
        store_report(self._store)

    def _release(self) -> None:
        with self._lease_lock:
            self._lease.release()

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

    # --------------------------------------------------------------- what needs a clock

    def _tick_on(self) -> None:
        try:
            self._tick()
        except Exception as error:  # noqa: BLE001 - the thread's entry: without it nobody would see ranks that hang
            self.broke(error)

    def broke(self, error: Exception) -> None:
        """A thread of the supervisor ended by a bug: the run must not go on without it."""
        traceback.print_exception(error)
        self.ledger.error = InternalError(f"{type(error).__name__}: {error}", where="supervisor")
        self.hearing.abort = self.hearing.abort or str(self.ledger.error)

    def _tell_outage(self, unsent: int, now: float) -> None:
        """Say when the store goes away and when it comes back; called after each try to send."""
        self._outage, news = outage.observe(self._outage, unsent, now)
        if news is not None:
            self.ledger.note(news.kind, for_s=news.for_s, why=self.ledger.problem or "it takes nothing")

    def _tick(self) -> None:
        """Renew the lease, send what waits, and look for ranks that are stuck."""
        last_renewal = last_flush = time.monotonic()
        while not self.ledger.over.wait(_TICK_S):
            now = time.monotonic()
            try:
                if now - last_flush > _FLUSH_EVERY_S:
                    last_flush = now
                    self._tell_outage(self.ledger.flush(_TICK_S), now)
                if now - last_renewal > LEASE_TTL_S / 3:
                    last_renewal = now
                    with self._lease_lock:  # not the ledger's: a store that is slow must not hold up heartbeats
                        self._lease.renew(time.time())
                self._hands.look(self.ledger.note)
            except FencedError as error:
                self.ledger.error = error
                self.hearing.abort = str(error)
                return
            except StorageError:
                continue  # the store is away: nothing is lost, and the next tick is soon
            self._collector.watch()
