"""A world of several ranks in processes of their own, gloo between them, no Ray: a real step loop on each."""

from __future__ import annotations

import hashlib
import multiprocessing
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.one_rank import CPU, SEQUENCE, join_as, tiny_config
from tests.support.user_factories import Numbers
from torch._C._distributed_c10d import TCPStore

from stormsail.platform.diagnosis import ReplayPlan, ReplayResult
from stormsail.platform.errors import ConfigError, StateMismatchError
from stormsail.platform.messages import (
    CheckpointRef,
    Directive,
    Heartbeat,
    HeartbeatReply,
    Incident,
    LrEvent,
    StepRow,
    World,
)
from stormsail.platform.storage.memory import MemoryStore
from stormsail.supervisor.case import open_case
from stormsail.supervisor.diagnose import plan_replay
from stormsail.supervisor.tracing import trace_of
from stormsail.workers import replay_live
from stormsail.workers.batches import BatchReader
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.evaluation import Evaluator
from stormsail.workers.heartbeat import HeartbeatThread
from stormsail.workers.inject import Injector
from stormsail.workers.loop import StepLoop
from stormsail.workers.replay import Subject
from stormsail.workers.session import Session
from stormsail.workers.snapshot import SnapshotWriter

_LIMIT_S = 500.0


@dataclass(frozen=True)
class Job:
    """What every rank does.

    Attributes:
        steps: Steps to run.
        config: Sections of the configuration that differ.
        astray: (rank, step): from there on this rank alone works at another learning rate.
        slow: (rank, seconds): that each of its samples takes.
        stall: (rank, step, seconds): that one of its steps takes longer.
        blank: (rank, step): where that rank has no real token; rank -1 stands for all.
        loud: (rank, step, factor): where the loss of one rank alone is so much larger.
        replay: Whether an incident is answered with its diagnosis, from the initial state.
        breaks: Whether a first replay breaks off on all ranks, after one step of it, before anything else happens.
        evaluated: Step before which the state is evaluated, and once more with other samples held out on each rank.
        forgets: A rank whose memory loses what was parked in it, in a last replay after everything else.
    """

    steps: int
    config: dict[str, Any] = field(default_factory=dict)
    astray: tuple[int, int] | None = None
    slow: tuple[int, float] | None = None
    stall: tuple[int, int, float] | None = None
    blank: tuple[tuple[int, int], ...] = ()
    loud: tuple[int, int, float] | None = None
    replay: bool = False
    breaks: bool = False
    evaluated: int | None = None
    forgets: int | None = None


@dataclass
class Told:
    """What one rank tells afterwards.

    Attributes:
        moved: By step, whether its weights, moments or Adam's step changed.
        finite: By step, whether all of them were finite afterwards.
        weights: By step, a hash of the weights that every rank holds whole; these must be the same everywhere.
        applied: By step, its own count of updates.
        rows: Rank 0's rows.
        lines: Rank 0's lines.
        incidents: Incidents that it reported.
        results: What replays gave.
        evaluations: What evaluations found, and why one was refused.
        undisturbed: Whether these left the rank's state as it was.
        broken: Why the first replay broke off, or "".
        error: What it ended with, or "".
    """

    rank: int
    moved: list[bool] = field(default_factory=list)
    finite: list[bool] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    rows: list[StepRow] = field(default_factory=list)
    lines: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    results: list[ReplayResult] = field(default_factory=list)
    evaluations: list[float | str | None] = field(default_factory=list)
    undisturbed: bool = False
    broken: str = ""
    error: str = ""


def run_world(job: Job, world_size: int, *, home: Path, extensions: Path) -> list[Told]:
    """Run the job on so many ranks; by rank, what they tell."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
    ranks = [
        context.Process(
            target=_entry,
            args=(job, World(1, rank, world_size, "127.0.0.1", int(meeting.port)), home, extensions, answers),
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    try:
        told = _gather(answers, ranks, world_size)
    finally:
        for process in ranks:
            process.join(30.0)
            if process.is_alive():
                process.kill()
                process.join()
    return sorted(told, key=lambda one: one.rank)


def _gather(answers: Any, ranks: list[Any], count: int) -> list[Told]:
    told: list[Told] = []
    deadline = time.monotonic() + _LIMIT_S
    while len(told) < count:
        try:
            told.append(answers.get(timeout=1.0))
        except queue.Empty:
            broken = [process.exitcode for process in ranks if process.exitcode]
            assert not broken, f"ranks ended with {broken}"
            assert time.monotonic() < deadline, "the ranks did not come to an end"
    return told


def _entry(job: Job, place: World, home: Path, extensions: Path, answers: Any) -> None:
    with join_as(place, home / str(place.rank), extensions) as world:
        answers.put(_Runner(job, world).run())


class _Runner:
    def __init__(self, job: Job, world: World) -> None:
        self.job, self.world, self.told = job, world, Told(world.rank)
        self.config = tiny_config(
            **{"cluster": {"workers": world.world_size}, "checkpoint": {"every_steps": 100_000}, **job.config}
        )
        self.beat = HeartbeatThread(self._hear, attempt=1, rank=world.rank)
        snapshots = SnapshotWriter(
            MemoryStore(),
            rank=world.rank,
            world_size=world.world_size,
            deliver=lambda *_: None,
            missed=lambda *_: None,
            deadline_s=30.0,
        )
        train = self.config.train
        pace = job.slow[1] if job.slow is not None and job.slow[0] == world.rank else 0.0
        self.source = Paced(pace)
        source = BatchReader(
            self.source,
            rank=world.rank,
            world_size=world.world_size,
            global_batch=train.global_batch,
            micro_batch=train.micro_batch,
            sequence_tokens=SEQUENCE,
        )
        self.session = Session(
            self.config,
            world,
            device=CPU,
            store=MemoryStore(),
            samples=source.samples,
            supervisor=self,
            beat=self.beat,
            on_generation=snapshots.drop_before,
        )
        injector = Injector(self.config.drill.faults, rank=world.rank, fired={}, announce=lambda *_: None)
        self.loop = StepLoop(
            self.session,
            source=source,
            supervisor=self,
            beat=self.beat,
            injector=injector,
            snapshots=snapshots,
        )

    def run(self) -> Told:
        self.loop.obey(Directive(1))
        before = self._fingerprint()
        if self.job.breaks:
            self._break_a_replay()
            assert self._fingerprint() == before
        for step in range(self.job.steps):
            if step == self.job.evaluated:
                self._evaluate()
                self.told.undisturbed = self._fingerprint() == before
            if self.job.astray == (self.world.rank, step):
                self.session.directive = replace(self.session.directive, lr_events=(LrEvent(0, 0.9, 1),))
            if self.job.stall is not None and self.job.stall[:2] == (self.world.rank, step):
                self.source.pause_s = self.job.stall[2]
            self.source.blank = not {(self.world.rank, step), (-1, step)}.isdisjoint(self.job.blank)
            with self._loudness(step):
                self.loop.step()
            after = self._fingerprint()
            self.told.moved.append(after != before)
            self.told.weights.append(self._whole_weights())
            self.told.applied.append(self.session.position.applied)
            self.told.finite.append(all(bool(torch.isfinite(live).all()) for live in self._live()))
            before = after
            if self.session.directive.stop_reason:
                break
        if self.job.forgets is not None:
            self._forget()
        self.loop.close()
        self.beat.close()
        torch.distributed.barrier()
        self.session.engine.destroy()
        return self.told

    def _evaluate(self) -> None:
        # Of the others, each rank would run another number of passes.
        for held_out in (Numbers(7), Numbers(7 + 20 * self.world.rank)):
            evaluator = Evaluator(self.config, held_out, self.world, device=CPU)
            try:
                self.told.evaluations.append(evaluator.evaluate(self.session.engine).loss)
            except ConfigError as error:
                self.told.evaluations.append(error.what)

    def _break_a_replay(self) -> None:
        def breaks(_plan: ReplayPlan, subject: Subject, _precision: str) -> ReplayResult:
            subject.step(0, leave_out=(), lr_factor=1.0)
            raise MemoryError(f"rank {self.world.rank} has no room")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replay_live, "replay", breaks)
            found = self._diagnose()
        self.told.broken = found.problem if found.broken else ""

    def _forget(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replay_live, "replay", lambda _plan, _subject, _precision: ReplayResult())
            if self.job.forgets == self.world.rank:
                patch.setattr(replay_live, "park", _forgetful(replay_live.park))
            try:
                self._diagnose()
            except StateMismatchError as error:
                self.told.error = str(error)

    def _diagnose(self) -> ReplayResult:
        plan = ReplayPlan(None, 0, (0, 1), (), (), 0)
        loop = self.loop
        return replay_live.diagnose(
            plan, self.session, source=loop.source, injector=loop.injector, at=lambda _phase, _step: None
        )

    def incident(self, incident: Incident) -> Directive:
        self.told.incidents.append(incident)
        if not self.job.replay:
            return Directive(2, stop_reason="seen")
        self.beat.flush()
        case = open_case(trace_of(self.told.rows, incident), incident.onset)
        assert case is not None
        plan = plan_replay(case, [], exact=True, budget_steps=50)
        assert isinstance(plan, ReplayPlan), plan
        return Directive(1, experiment=plan)

    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        self.told.results.append(result)
        return Directive(2, stop_reason=f"seen at {incident.step}")

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        raise AssertionError((ref, problem))

    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        raise AssertionError((generation, step, problem))

    @contextmanager
    def _loudness(self, step: int) -> Iterator[None]:
        if self.job.loud is None or self.job.loud[:2] != (self.world.rank, step):
            yield
            return
        factor = self.job.loud[2]
        handle = self.session.engine.module.register_forward_hook(lambda _module, _args, losses: losses * factor)
        yield
        handle.remove()

    def _whole_weights(self) -> str:
        found = hashlib.sha256()
        for parameter in self.session.engine.module.parameters():
            if parameter.numel() == parameter.ds_numel:  # type: ignore[attr-defined] # DeepSpeed's
                found.update(parameter.detach().float().numpy().tobytes())
        return found.hexdigest()

    def _live(self) -> list[torch.Tensor]:
        return [live for _, _, live in self.session.engine.live_buffers()]

    def _fingerprint(self) -> tuple[object, ...]:
        sums = [live.detach().numpy().view(np.uint32).sum(dtype=np.uint64) for live in self._live()]
        return (*(int(one) for one in sums), str(self.session.engine.optimizer_scalars()))

    def _hear(self, beat: Heartbeat) -> HeartbeatReply:
        self.told.rows += beat.rows
        self.told.lines += [(kind, fields) for _, kind, fields in beat.lines]
        return HeartbeatReply()


class Paced(Numbers):
    """Numbers that take their time."""

    def __init__(self, pace_s: float) -> None:
        super().__init__()
        self.pace_s, self.pause_s, self.blank = pace_s, 0.0, False

    def sample(self, index: int, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        time.sleep(self.pace_s + self.pause_s)
        self.pause_s = 0.0
        tokens, targets, mask = super().sample(index)
        return tokens, targets, np.zeros_like(mask) if self.blank else mask


def _forgetful(park: Callable[[ZeroEngine], replay_live.Parked]) -> Callable[[ZeroEngine], replay_live.Parked]:
    """A memory that flips a bit of what is parked in it."""

    def parks(engine: ZeroEngine) -> replay_live.Parked:
        parked = park(engine)
        parked.shards[0].values.view(np.uint32)[0] ^= 1
        return parked

    return parks
