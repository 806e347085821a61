"""The supervisor of one run: starts attempts, hears of faults, asks the ladder, journals, and does what it says.

It is a plain object: `actor.py` puts it into a Ray actor. All that it knows is in the journal, so that a new
one takes over where the old one died. Deciding is in `ladder.py`; nothing here branches on a fault's kind
except to describe it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stormsail.platform.checkpoint.collector import collect
from stormsail.platform.checkpoint.commits import list_commits
from stormsail.platform.checkpoint.lines import Generation, create_generation, live_refs
from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.checkpoint.retention import retain
from stormsail.platform.config.dump import parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError, FencedError, InternalError, LadderExhaustedError, StorageError, StormsailError
from stormsail.platform.journal_events import Event
from stormsail.platform.journal import Journal
from stormsail.platform.lease import LeaseOwner, RunLease
from stormsail.platform.messages import (
    CheckpointRef,
    Directive,
    Heartbeat,
    HeartbeatReply,
    Incident,
    JoinRequest,
    Placement,
    StepRow,
    Tier,
    WorkerFailure,
)
from stormsail.platform.series import SeriesWriter, read_series
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import faults, ladder
from stormsail.supervisor.attempt import AttemptResult
from stormsail.supervisor.candidates import CandidateCheckpoint, promote
from stormsail.supervisor.committer import Committed, Committer
from stormsail.supervisor.membership import Membership
from stormsail.supervisor.record import Record, apply, fold

LEASE_TTL_S = 30.0
_SETTLE_S = 30.0
_RECENT_ROWS = 4096
_EXPECTED_LOSSES = 5


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
        stop_step: Step to end at instead of `train.steps`, or None.
        take_over: Whether an expired lease may be taken over.
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
    stop_step: int | None = None
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a follower gets at each look.

    Attributes:
        events: Events newer than the follower's cursor.
        rows: The newest rows that the follower has not seen.
        cursor: The follower's next (event number, row number).
        step: Step that the run is at.
        phase: What the run does.
        over: Whether the supervisor has nothing more to do.
        error: Why the supervisor itself gave up, or None.
    """

    events: tuple[Event, ...]
    rows: tuple[StepRow, ...]
    cursor: tuple[int, int]
    step: int
    phase: str
    over: bool
    error: StormsailError | None


AttemptRunner = Callable[[RunConfig, int], AttemptResult]
Prepare = Callable[[RunConfig, Callable[..., object]], None]


class RunSupervisor:
    """Supervises one run from its own thread until it is over.

    Args:
        spec: What to run and where.
        owner: Says who holds the lease, for people: host and pid.
        host: Address that workers reach this process at.
        run_attempt: Runs one attempt with the given number; blocks until it has ended.
        prepare: Checks the cluster before the first attempt of this supervisor.
    """

    def __init__(self, spec: RunSpec, *, owner: str, host: str, run_attempt: AttemptRunner, prepare: Prepare) -> None:
        self.spec = spec
        self.owner = owner
        self.config: RunConfig = parse_dump(spec.config)
        self.policy = ladder.LadderPolicy.from_config(self.config)
        self.store = open_store(spec.store)
        self.lock = threading.RLock()
        self.record = Record()
        self.events: list[Event] = []
        self.rows: deque[tuple[int, StepRow]] = deque(maxlen=_RECENT_ROWS)
        self.row_number = 0
        self.losses: dict[int, float] = {}
        self.highest = -1
        self.asked: tuple[ladder.LadderState, ladder.Fault] | None = None
        self.last_row: dict[int, int] = {}
        self.last_line: dict[tuple[int, int], int] = {}
        self.failures: list[WorkerFailure] = []
        self.fault_times: dict[int, float] = {}
        self.stop_reason = ""
        self.phase = "starting"
        self.caught_up_at: int | None = None
        self.first_step_of: int | None = None
        self.directive: Directive | None = None
        self.loop_end: dict[str, Any] = {}
        self.error: StormsailError | None = None
        self.over = threading.Event()
        self.membership = Membership(host=host, timeout_s=self.config.cluster.start_timeout_s)
        self._run_attempt = run_attempt
        self._prepare = prepare
        self._missed_in_row = 0
        self._journal: Journal | None = None
        self._committer: Committer | None = None
        self._series: SeriesWriter | None = None
        self._lease: RunLease | None = None

    # ------------------------------------------------------------- the run's course

    def drive(self) -> None:
        """Run to the end. Call it from a thread of its own; it never raises."""
        try:
            self._open()
            self._course()
        except StormsailError as error:
            self._give_up(error)
        finally:
            self._close()
            self.over.set()

    def _open(self) -> None:
        """Take the lease and learn what happened so far."""
        self._lease = RunLease.acquire(
            self.store,
            LeaseOwner.here(self.spec.owner_id),
            ttl_s=LEASE_TTL_S,
            now=time.time(),
            take_over=self.spec.take_over,
        )
        threading.Thread(target=self._keep_lease, name="stormsail-lease", daemon=True).start()
        folder = Path(self.spec.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = Journal.open(self.store, folder / "journal.jsonl", writer=self.spec.owner_id)
        past = Journal.read(self.store)
        self.record = fold(past)
        self.events.extend(past)
        self._series = SeriesWriter(self.store)
        for row in read_series(self.store):
            if math.isfinite(row["loss"] if row["loss"] is not None else math.nan):
                self.losses[int(row["step"])] = float(row["loss"])
            self.highest = max(self.highest, int(row["step"]))
        self._committer = Committer(
            self.store,
            deadline_s=self.config.checkpoint.deadline_s,
            on_commit=self._committed,
            on_missed=self._missed,
            parent_of=self._parent_of,
        )
        self.note(
            "run.continued" if past else "run.started",
            config=self.spec.config,
            owner=self.owner,
            stop_step=self.spec.stop_step,
            durable=True,
        )
        threading.Thread(target=self._flush_rows, name="stormsail-series", daemon=True).start()

    def _course(self) -> None:
        self.phase = "preparing"
        self._prepare(self.config, self.note)
        directive: Directive | None = self._plain_start()
        while directive is not None:
            self.directive = directive
            attempt = self.record.attempt + 1
            self.failures, self.loop_end = [], {}
            self.phase = "starting workers"
            self.note("attempt.started", attempt=attempt, workers=self.config.cluster.workers)
            self.membership.expect(
                attempt=attempt, generation=directive.generation, workers=self.config.cluster.workers
            )
            result = self._run_attempt(self.config, attempt)
            directive = self._after(attempt, result)

    def _after(self, attempt: int, result: AttemptResult) -> Directive | None:
        """What follows an attempt: the end of the run, or another attempt."""
        self._committing.settle(_SETTLE_S)
        if self.record.outcome:
            return None
        if result.ok:
            self._ended_well()
            return None
        fault = faults.describe(result, self.failures, step=self._position(), now_s=time.time())
        fault_time = self.fault_times.pop(attempt, fault.time_s)
        self.note(
            "fault.detected",
            step=fault.step,
            kind=str(fault.kind),
            rank=fault.rank,
            onset=fault.step,
            error=fault.error,
            details=fault.details,
            fault_time_s=fault_time,
        )
        if self.stop_reason:
            self.note("run.stopped", step=self._position(), reason=self.stop_reason, exit_code=5)
            return None
        directive = self._decide(fault.for_ladder(), described=fault)
        return None if directive.stop_reason else directive

    def _ended_well(self) -> None:
        self.phase = "finishing"
        self._committing.drain(self.config.checkpoint.deadline_s)
        step = int(self.loop_end.get("step", self._position()))
        last = max(self.record.commits, key=lambda commit: (commit.ref.generation, commit.ref.step), default=None)
        digest = last.digest if last is not None and last.ref.step == step else None
        if self.stop_reason and self.loop_end.get("outcome") == "stopped":
            self.note("run.stopped", step=step, reason=self.stop_reason, digest=digest, exit_code=5)
        else:
            applied = int(self.loop_end.get("applied", 0))
            self.note("run.finished", step=step, applied=applied, digest=digest, exit_code=0)

    def _give_up(self, error: StormsailError) -> None:
        """The supervisor itself cannot go on: say why, keep everything."""
        self.error = error
        if self._journal is not None and not isinstance(error, FencedError) and not self.record.outcome:
            self.note("run.failed", error=str(error), exit_code=error.exit_code)

    def _close(self) -> None:
        self.phase = "over"
        if self._committer is not None:
            self._committer.close()
        if self._series is not None:
            self._series.flush()
        if self._journal is not None:
            self._journal.flush(deadline_s=self.config.journal.deadline_s)
        if self._lease is not None and not isinstance(self.error, FencedError):
            self._lease.release()

    # -------------------------------------------------------------------- deciding

    def _plain_start(self) -> Directive:
        """Begin, or go on from where a run without a fault stands; costs no tier."""
        decision = ladder.plan_start(
            self.record.ladder,
            self._candidates(),
            self.policy,
            self.record.lr_events,
            run_precision=self.config.train.precision,
        )
        expected = self._expected(decision.restore, None, _EXPECTED_LOSSES)
        generation = self._new_generation(decision.restore, decision.reason)
        self.record = replace(self.record, ladder=decision.state)
        return self._directive(decision, generation, expected, exact=True)

    def _directive(
        self, decision: ladder.Decision, generation: int, expected: tuple[tuple[int, float], ...], *, exact: bool
    ) -> Directive:
        return Directive(
            generation=generation,
            tier=decision.tier,
            restore=decision.restore,
            precision=decision.precision,
            fp32_until=decision.fp32_until,
            lr_events=decision.lr_events,
            skip=decision.skip,
            stop_step=self.spec.stop_step,
            reason=decision.reason,
            expected_losses=expected,
            exact=exact and self.config.train.deterministic,
        )

    def _decide(self, fault: ladder.Fault, *, described: faults.Described | None = None) -> Directive:
        """Ask the ladder, journal its answer, begin the new generation (from any thread)."""
        with self.lock:
            self.phase = "deciding"
            self.asked = (self.record.ladder, fault)
            return self._carry_out(self._ask(), fault, described)

    def _ask(self) -> ladder.Decision:
        """Put the last question, with the checkpoints that are there now."""
        if self.asked is None:
            raise InternalError("no fault is being decided")
        state, fault = self.asked
        return ladder.decide(
            state,
            fault,
            self._candidates(),
            self.policy,
            self.record.lr_events,
            run_precision=self.config.train.precision,
            generation=self.record.generation + 1,
        )

    def _carry_out(
        self, decision: ladder.Decision, fault: ladder.Fault, described: faults.Described | None
    ) -> Directive:
        self.note(
            "ladder.decided",
            step=fault.step,
            kind=str(fault.kind),
            highest_step=self.highest,
            durable=True,
            **decision.to_json(),
        )
        if decision.stop_exit_code is not None:
            return self._stop_for_good(decision, fault, described)
        unchanged = decision.tier in (None, Tier.RESUME) and decision.precision == self.config.train.precision
        expected = self._expected(decision.restore, fault.onset, _EXPECTED_LOSSES if unchanged else 1)
        self.caught_up_at = self.highest
        generation = self._new_generation(decision.restore, decision.reason)
        self.first_step_of = generation
        return self._directive(decision, generation, expected, exact=unchanged)

    def _stop_for_good(
        self, decision: ladder.Decision, fault: ladder.Fault, described: faults.Described | None
    ) -> Directive:
        if decision.stop_exit_code == LadderExhaustedError.exit_code:
            self.note("run.exhausted", step=fault.step, reason=decision.reason, exit_code=4, durable=True)
        else:
            self.note(
                "run.failed",
                step=fault.step,
                error=described.error if described else fault.detail,
                details=described.details if described else "",
                reason=decision.reason,
                exit_code=described.exit_code if described else decision.stop_exit_code,
                durable=True,
            )
        return Directive(generation=self.record.generation, tier=Tier.EXHAUSTED, stop_reason=decision.reason)

    def _new_generation(self, parent: CheckpointRef | None, reason: str) -> int:
        number = self.record.generation + 1
        fork = parent.step if parent else 0
        made = Generation(
            number=number,
            parent=parent.generation if parent else None,
            fork_step=fork,
            reason=reason,
            owner=self.owner,
            time_s=time.time(),
        )
        self._within_deadline(lambda: create_generation(self.store, made))
        self.note(
            "generation.created",
            step=fork,
            parent=made.parent,
            fork_step=fork,
            reason=reason,
            owner=self.owner,
            generation=number,
            durable=True,
        )
        self._committing.advance(number)
        # What older generations saw beyond the fork may not come again: the LR or the data may differ.
        self.losses = {step: loss for step, loss in self.losses.items() if step < fork}
        return number

    def _within_deadline(self, action: Callable[[], object]) -> None:
        """A decision that starts a generation waits for a store that is down, up to `journal.deadline_s`."""
        deadline = time.monotonic() + self.config.journal.deadline_s
        while True:
            try:
                action()
            except FencedError:
                raise
            except StorageError:
                if time.monotonic() > deadline:
                    raise
                self.over.wait(1.0)
            else:
                return

    def _candidates(self) -> list[CandidateCheckpoint]:
        """Commits of the live line that have not failed verification, oldest first."""
        live = live_refs(self.record.generations, [commit.ref for commit in self.record.commits if commit.finite])
        return [
            CandidateCheckpoint(ref, ref in self.record.good)
            for ref in sorted(live, key=lambda item: (item.step, item.generation))
            if ref not in self.record.corrupt
        ]

    def _parent_of(self, generation: int) -> CheckpointRef | None:
        made = next((g for g in self.record.generations if g.number == generation), None)
        return CheckpointRef(made.parent, made.fork_step) if made is not None and made.parent is not None else None

    def _expected(self, ref: CheckpointRef | None, onset: int | None, count: int) -> tuple[tuple[int, float], ...]:
        """Recorded losses of the first steps after a restore, as far as they lie before the onset."""
        first = ref.step if ref else 0
        last = first + count if onset is None else min(first + count, onset)
        return tuple((step, self.losses[step]) for step in range(first, last) if step in self.losses)

    # ------------------------------------------------------------- what workers say

    def join(self, request: JoinRequest) -> None:
        """A worker asks for a place."""
        if self.membership.join(request):
            workers = self.membership.workers
            self._check_data(workers)
            self.phase = "running"
            self.note(
                "world.formed",
                world_size=len(workers),
                workers=[{"host": w.hostname, "pid": w.pid, "device": w.device} for w in workers],
                data_digest=workers[0].data_digest,
            )

    def _check_data(self, workers: list[JoinRequest]) -> None:
        """All workers must read the same data, and the data that the run began with."""
        wanted = self.record.data_digest or workers[0].data_digest
        for worker in workers:
            if worker.data_digest != wanted:
                raise ConfigError(
                    f"worker {worker.worker_rank} reads other data than "
                    + ("the run began with" if self.record.data_digest else "worker 0"),
                    where=f"data, on {worker.hostname}",
                    todo="put the same data on every node, or begin another run",
                )

    def placement(self, attempt: int, worker_rank: int) -> Placement | None:
        """The worker's place and directive, or None if there is no world yet (waits a little)."""
        world = self.membership.world_of(attempt, worker_rank, wait_s=2.0)
        if world is None or self.directive is None:
            return None
        return Placement(world, self.directive, self.record.fired)

    def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        """A worker is alive; take its rows and lines, answer with what people want."""
        if beat.attempt != self.record.attempt:
            return HeartbeatReply(abort=f"attempt {beat.attempt} is over, attempt {self.record.attempt} runs")
        if self.over.is_set() or self.error is not None:
            return HeartbeatReply(abort="the supervisor has ended the run")
        with self.lock:
            for row in beat.rows:
                self._take_row(row)
            for number, kind, fields in beat.lines:
                self._take_line(beat, number, kind, dict(fields))
        return HeartbeatReply(stop_requested=self.stop_reason)

    def _take_row(self, row: StepRow) -> None:
        if row.step <= self.last_row.get(row.generation, -1) or row.generation != self.record.generation:
            return
        self.last_row[row.generation] = row.step
        self.row_number += 1
        self.rows.append((self.row_number, row))
        if self._series is not None:
            self._series.add([asdict(row)])
        if self.first_step_of == row.generation:
            self.first_step_of = None
            self.note("recovery.first_step", step=row.step, time_s=row.time_s)
        if self.caught_up_at is not None and row.step > self.caught_up_at:
            self.caught_up_at = None
            self.note("recovery.caught_up", step=row.step, time_s=row.time_s)
        self.highest = max(self.highest, row.step)
        healthy = row.outcome != "dropped"
        if healthy and math.isfinite(row.loss):
            self.losses[row.step] = row.loss
        state, notes = ladder.observe(self.record.ladder, row.step, healthy, self.policy)
        for note in notes:
            tier = str(note.tier) if note.tier else None
            self.note(note.kind, step=row.step, episode=note.episode, tier=tier, state=state.to_json())
        self.record = replace(self.record, ladder=state)
        if healthy:
            self._promote(row.step)

    def _promote(self, step: int) -> None:
        ready = promote(
            self._candidates(),
            healthy_step=step,
            episode_open=self.record.ladder.numeric is not None,
            good_after_steps=self.config.checkpoint.good_after_steps,
        )
        for ref in ready:
            self.note("checkpoint.good", step=ref.step, generation=ref.generation)

    def _take_line(self, beat: Heartbeat, number: int, kind: str, fields: dict[str, Any]) -> None:
        key = (beat.attempt, beat.rank)
        if number <= self.last_line.get(key, 0):
            return
        self.last_line[key] = number
        if kind == "loop.ended":
            self.loop_end = fields
        elif kind == "checkpoint.missed":
            self._missed(int(fields["generation"]), int(fields["step"]), str(fields["why"]))
        else:
            self.note(kind, **fields)

    def incident(self, incident: Incident) -> Directive:
        """Rank 0 needs a decision; every rank obeys the answer."""
        with self.lock:
            if incident.generation != self.record.generation:
                return Directive(generation=self.record.generation, stop_reason="an older generation asked")
            self.note(
                "fault.detected",
                step=incident.step,
                kind=str(incident.kind),
                onset=incident.onset,
                severity=incident.severity,
                evidence=incident.evidence,
                error=str(incident.evidence.get("reason", "")),
            )
            fault = ladder.Fault(
                kind=incident.kind,
                step=incident.step,
                onset=incident.onset,
                time_s=time.time(),
                signature=str(incident.kind),
                detail=str(incident.evidence.get("reason", "")),
            )
            self._committing.settle(_SETTLE_S)
            self.directive = self._decide(fault)
            self.phase = "running"
            return self.directive

    def restore_failed(self, generation: int, ref: CheckpointRef, problem: str) -> Directive:
        """A checkpoint could not be loaded: never take it again, and decide anew."""
        with self.lock:
            self.note("checkpoint.corrupt", step=ref.step, generation=ref.generation, problem=problem)
            if self.asked is None:
                self.directive = self._plain_start()
            else:
                self.directive = self._carry_out(self._ask(), self.asked[1], None)
            return self.directive

    def part_written(self, part: RankPart, meta: CheckpointMeta | None, took_s: float) -> None:
        """A rank has written its part of a save."""
        self._committing.add(part, meta, took_s)

    def drill_fired(self, index: int, kind: str, step: int, rank: int) -> None:
        """A drill fault fires; recorded before it has its effect."""
        self.fault_times[self.record.attempt] = time.time()
        self.note("drill.fired", step=step, index=index, kind=kind, rank=rank)

    def worker_failed(self, failure: WorkerFailure) -> None:
        """A worker says why it dies."""
        with self.lock:
            if failure.attempt == self.record.attempt:
                self.failures.append(failure)

    # -------------------------------------------------------------- what people say

    def request_stop(self, reason: str) -> None:
        """Stop at the next step, on all ranks alike, saving state."""
        self.stop_reason = reason
        self.note("stop.requested", reason=reason)

    def look(self, cursor: tuple[int, int]) -> Snapshot:
        """What is new since the cursor."""
        with self.lock:
            events = tuple(event for event in self.events if event.number > cursor[0])
            rows = [(number, row) for number, row in self.rows if number > cursor[1]]
            return Snapshot(
                events=events,
                rows=tuple(row for _, row in rows),
                cursor=(events[-1].number if events else cursor[0], rows[-1][0] if rows else cursor[1]),
                step=self._position(),
                phase=self.phase,
                over=self.over.is_set(),
                error=self.error,
            )

    # ----------------------------------------------------------------- bookkeeping

    def note(self, kind: str, /, *, step: int | None = None, durable: bool = False, **data: Any) -> Event:
        """Journal an event, then let the record know (from any thread)."""
        with self.lock:
            event = self._written.append(
                kind,
                time_s=time.time(),
                generation=int(data["generation"]) if kind == "generation.created" else self.record.generation,
                step=step,
                attempt=int(data["attempt"]) if kind == "attempt.started" else self.record.attempt,
                data=data,
                durable=durable,
                deadline_s=self.config.journal.deadline_s,
            )
            self.record = apply(self.record, event)
            self.events.append(event)
            return event

    def _committed(self, done: Committed) -> None:
        manifest = done.manifest
        self._missed_in_row = 0
        self.note(
            "checkpoint.committed",
            step=manifest.step,
            generation=manifest.generation,
            bytes=manifest.stored_bytes,
            took_s=done.took_s,
            digest=manifest.root,
            finite=manifest.nonfinite == 0,
        )
        self._retain()

    def _missed(self, generation: int, step: int, why: str) -> None:
        self._missed_in_row += 1
        self.note("checkpoint.missed", step=step, generation=generation, why=why)
        if self._missed_in_row == self.config.checkpoint.max_missed:
            self.note("checkpoint.alert", step=step, missed=self._missed_in_row, why=why)

    def _retain(self) -> None:
        """Delete what no one may need any more; runs in the committer's thread."""
        with self.lock:
            record = self.record
        commits = list_commits(self.store)
        plan = retain(
            commits,
            good=set(record.good),
            live=set(live_refs(record.generations, [commit.ref for commit in commits])),
            head_step=max((commit.step for commit in commits), default=0),
            keep_last=self.config.checkpoint.keep_last,
            ladder_min_steps=max(self.config.rollback.min_steps, self.config.fp32.window_steps),
        )
        if plan.delete:
            collect(self.store, plan)
            self.note("checkpoint.deleted", refs=[[ref.generation, ref.step] for ref in plan.delete])

    def _position(self) -> int:
        return self.rows[-1][1].step + 1 if self.rows else 0

    def _keep_lease(self) -> None:
        while not self.over.wait(LEASE_TTL_S / 3):
            try:
                if self._lease is not None:
                    self._lease.renew(time.time())
            except FencedError as error:
                self.error = error
                return
            except StorageError:
                continue  # the store is away; the journal's fencing holds, and the next renewal is soon

    def _flush_rows(self) -> None:
        while not self.over.wait(5.0):
            if self._series is not None:
                self._series.flush()
            if self._journal is not None and self._journal.pending:
                self._journal.flush(deadline_s=1.0)

    @property
    def _written(self) -> Journal:
        if self._journal is None:
            raise RuntimeError("the journal is used before it was opened")
        return self._journal

    @property
    def _committing(self) -> Committer:
        if self._committer is None:
            raise RuntimeError("the committer is used before it was started")
        return self._committer
