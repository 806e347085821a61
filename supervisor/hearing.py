"""What workers say to the supervisor, and what it knows of each from that: joins, heartbeats, parts, last words.

Called by Ray in many threads; the ledger's lock orders them.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError, FencedError
from stormsail.platform.messages import Heartbeat, HeartbeatReply, JoinRequest, Placement, WorkerFailure
from stormsail.supervisor import evaluations
from stormsail.supervisor.answering import Answering
from stormsail.supervisor.committer import Committer
from stormsail.supervisor.deciding import Decider
from stormsail.supervisor.keeping import Keeper
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.membership import Membership
from stormsail.supervisor.phases import RunEvent, RunPhase
from stormsail.supervisor.progress import Progress
from stormsail.supervisor.watch import hang
from stormsail.supervisor.watch.waiting import Wait, describe, describe_evaluation

_PLACEMENT_WAIT_S = 2.0


class Hearing:
    """Listens to the workers of the current attempt.

    Args:
        config: The run.
        ledger: What is known.
        decider: Knows what workers are to do.
        answering: Answers what rank 0 asks in the same attempt.
        keeper: Knows about checkpoints.
        committer: Gathers parts.
        membership: Forms worlds.
    """

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        *,
        decider: Decider,
        answering: Answering,
        keeper: Keeper,
        committer: Committer,
        membership: Membership,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._decider = decider
        self._keeper = keeper
        self._committer = committer
        self._membership = membership
        self._answering = answering
        self._progress = Progress(config, ledger, decider=decider, keeper=keeper)
        # Deciding and loading may wait for a store that is away, and that is no hanging.
        patience_s = config.cluster.start_timeout_s + config.journal.deadline_s
        self._limits = hang.Limits.of(
            config.hang, step_s=config.cluster.step_timeout_s, other_s=patience_s, eval_s=config.eval.timeout_s
        )
        self._watched = hang.Watched()
        self._evidence_wanted = False
        self._last_line: dict[tuple[int, int], int] = {}
        self._begun_s = time.monotonic()
        self.abort = ""
        self.stuck_rank = -1
        self.flights: dict[int, str] = {}
        self.failures: list[WorkerFailure] = []
        self.fired_s: float | None = None
        self.loop_end: dict[str, Any] = {}

    def begin(self, attempt: int) -> None:
        """A new attempt starts: what was heard of the one before counts no more."""
        with self._ledger.lock:
            self._answering.begin()
            self.abort, self.failures, self.fired_s, self.loop_end = "", [], None, {}
            self.stuck_rank, self.flights, self._watched = -1, {}, hang.Watched()
            self._begun_s = time.monotonic()
            self._progress.begin()
            self._last_line = {key: number for key, number in self._last_line.items() if key[0] == attempt}

    def end(self) -> None:
        """The attempt is over: a decision that was asked for in it is not taken any more, and nobody in it hangs."""
        with self._ledger.lock:
            self._answering.end()
            self._watched = hang.Watched()

    # --------------------------------------------------------------------- joining

    def join(self, request: JoinRequest) -> None:
        """A worker asks for a place.

        Raises:
            ConfigError: Workers read different data, or other data than the run began with.
        """
        if not self._membership.join(request):
            return
        workers = self._membership.workers
        self._check_data(workers)
        self._ledger.note(
            "world.formed",
            world_size=len(workers),
            workers=[{"host": w.hostname, "pid": w.pid, "device": w.device} for w in workers],
            data_digest=workers[0].data_digest,
        )

    def _check_data(self, workers: list[JoinRequest]) -> None:
        began_with = self._ledger.record.data_digest
        wanted = began_with or workers[0].data_digest
        for worker in workers:
            if worker.data_digest != wanted:
                raise ConfigError(
                    f"worker {worker.worker_rank} reads other data than "
                    + ("the run began with" if began_with else "worker 0"),
                    where=f"data, on {worker.hostname}",
                    todo="put the same data on every node, or begin another run",
                )

    def placement(self, attempt: int, worker_rank: int) -> Placement | None:
        """The worker's place and directive, or None if there is no world yet (waits a little)."""
        world = self._membership.world_of(attempt, worker_rank, wait_s=_PLACEMENT_WAIT_S)
        directive = self._decider.directive
        if world is None or directive is None:
            return None
        return Placement(world, directive, self._ledger.record.fired)

    # ------------------------------------------------------------------ heartbeats

    def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        """A worker is there; take its rows and lines, answer with what people want."""
        with self._ledger.lock:
            current = self._ledger.record.attempt
            if beat.attempt != current:
                return HeartbeatReply(abort=f"attempt {beat.attempt} is over, attempt {current} runs")
            if self._ledger.over.is_set() or self.abort:
                return HeartbeatReply(abort=self.abort or "the supervisor has ended the run")
            self._watched = hang.observe(self._watched, beat, time.monotonic())
            if beat.flight:
                self.flights[beat.rank] = beat.flight
            try:
                self._take(beat)
            except FencedError as error:  # another supervisor has the run: these workers are nobody's any more
                self._ledger.error = error
                self.abort = str(error)
                return HeartbeatReply(abort=self.abort)
            return HeartbeatReply(stop_requested=self._ledger.stop_reason, evidence=self._evidence_wanted)

    def find_stuck(self) -> hang.Stuck | None:
        """The rank that has not moved for too long, or None."""
        with self._ledger.lock:
            return hang.find_stuck(self._watched, self._limits, time.monotonic())

    def talking(self) -> set[int]:
        """The ranks that were heard of lately."""
        with self._ledger.lock:
            now_s, silent_s = time.monotonic(), self._limits.silent_s
            return {rank for rank, at in self._watched.ranks.items() if now_s - at.heard_s < silent_s}

    def watched(self) -> hang.Watched:
        """Where all ranks of the attempt are."""
        with self._ledger.lock:
            return self._watched

    def waiting(self) -> Wait | None:
        """What holds up the first step of the attempt, or an evaluation, or None; takes no lock of the ledger's."""
        if not self._answering.listening:
            return None
        if self._ledger.phase not in (RunPhase.STARTING, RunPhase.RECOVERING):
            return describe_evaluation(self._watched, self._limits, now_s=time.monotonic())
        return describe(
            self._watched,
            self._limits,
            joined=len(self._membership.workers),
            expected=self._config.cluster.workers,
            begun_s=self._begun_s,
            now_s=time.monotonic(),
        )

    def want_evidence(self, *, wanted: bool) -> None:
        """Ask every rank for its last collectives, with the answers to its heartbeats; `flights` takes them up."""
        with self._ledger.lock:
            self._evidence_wanted = wanted
            if wanted:
                self.flights = {}

    def end_attempt(self, attempt: int, reason: str, *, rank: int) -> None:
        """Tell all workers of an attempt to leave, because one of them is stuck; too late for one that is over."""
        with self._ledger.lock:
            if self._answering.listening and attempt == self._ledger.record.attempt:
                self.abort, self.stuck_rank = self.abort or reason, rank

    def _take(self, beat: Heartbeat) -> None:
        for row in beat.rows:
            self._progress.take(row)
        for number, kind, fields in beat.lines:
            self._take_line(beat, number, kind, dict(fields))

    def _take_line(self, beat: Heartbeat, number: int, kind: str, fields: dict[str, Any]) -> None:
        key = (beat.attempt, beat.rank)
        if number <= self._last_line.get(key, 0):
            return
        if kind == "loop.ended":
            self.loop_end = fields
        elif kind == "checkpoint.missed":
            self._keeper.missed(int(fields["generation"]), int(fields["step"]), str(fields["why"]))
        elif kind == "incident.shadowed":
            self._answering.shadowed(fields)
        else:
            if kind in ("rank.slow", "rank.stalled"):
                fields["host"] = self._membership.host_of(int(fields["rank"]))
            if kind == "replay.finished":
                fields |= self._replay_ended()
            if kind == "evaluation.finished":
                fields["lowest"] = evaluations.is_lowest(fields, self._ledger.record)
            self._ledger.note(kind, **fields)
        self._last_line[key] = number  # now: what could not be noted, as the disk was full, is said again

    def _replay_ended(self) -> dict[str, Any]:
        if self._ledger.phase is RunPhase.REPLAYING:
            self._ledger.move(RunEvent.REPLAY_ENDED)
        return asdict(self._ledger.replay_verdict())

    # --------------------------------------------------- saves, drills, last words

    def part_written(self, part: RankPart, meta: CheckpointMeta | None, took_s: float) -> None:
        """A rank has written its part of a save."""
        self._committer.add(part, meta, took_s)

    def drill_fired(self, index: int, kind: str, step: int, rank: int) -> None:
        """A drill fault fires; recorded before it has its effect."""
        if kind == "kill":  # the only one whose moment nobody else can tell
            self.fired_s = time.time()
        self._ledger.note("drill.fired", step=step, index=index, kind=kind, rank=rank)

    def worker_failed(self, failure: WorkerFailure) -> None:
        """A worker says why it dies."""
        with self._ledger.lock:
            if failure.attempt == self._ledger.record.attempt:
                self.failures.append(failure)
