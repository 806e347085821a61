"""Small pieces of a run for tests of the supervisor: configuration, rows, parts of a checkpoint, and a whole staff."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.differences import tiny_keyframe

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.keys import log_key
from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import write_part
from stormsail.platform.config.model import RunConfig
from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import CheckpointRef, FaultKind, Heartbeat, Incident, JoinRequest, Phase, StepRow
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.answering import Answering
from stormsail.supervisor.committer import Committed, Committer
from stormsail.supervisor.compacting import Compactor
from stormsail.supervisor.deciding import Decider
from stormsail.supervisor.hearing import Hearing
from stormsail.supervisor.keeping import Keeper
from stormsail.supervisor.ladder import Fault
from stormsail.supervisor.ledger import Ledger, parent_of
from stormsail.supervisor.membership import Membership
from stormsail.supervisor.phases import RunEvent

LIMIT_S = 60.0
ELEMENTS = 8
KEEP_LITTLE = {
    "every_steps": 1,
    "good_after_steps": 1,
    "keep_last": 1,
    "max_missed": 2,
    "deadline_s": LIMIT_S,
}
"""The `checkpoint` section of a run that keeps as little as it may, so that a test sees deletions early."""


def small_config(**changes: Any) -> RunConfig:
    """A short run of two workers without a mirror; `changes` replace whole sections."""
    values: dict[str, Any] = {
        "name": "run",
        "train": {"steps": 40},
        "schedule": {"warmup_steps": 2},
        "cluster": {"workers": 2},
        "checkpoint": {"every_steps": 10, "good_after_steps": 2, "deadline_s": LIMIT_S},
        "rollback": {"min_steps": 10},
        "fp32": {"window_steps": 10},
        "ladder": {"probation_steps": 3},
        "journal": {"deadline_s": 0.2},
        "tracking": {"uri": None},
    }
    return RunConfig.model_validate({**values, **changes})


def step_row(step: int, *, generation: int = 1, **changes: Any) -> StepRow:
    """A finished step."""
    values: dict[str, Any] = {
        "generation": generation,
        "step": step,
        "applied": step + 1,
        "loss": 5.0 - 0.01 * step,
        "grad_norm": 1.0,
        "clipped_norm": 1.0,
        "lr": 1e-3,
        "lr_factor": 1.0,
        "tokens": 2048,
        "step_s": 0.1,
        "time_s": 1_000_000.0 + step,
        "precision": "bf16",
        "outcome": "applied",
    }
    return StepRow(**{**values, **changes})


def beat(
    *, attempt: int = 1, rank: int = 0, step: int = 0, phase: Phase = Phase.STEP, generation: int = 1, **more: Any
) -> Heartbeat:
    """One heartbeat."""
    return Heartbeat(attempt, generation, rank, phase, step, **more)


def join_request(worker_rank: int, *, attempt: int = 1, data: str = "data") -> JoinRequest:
    """A worker of this machine asks for a place."""
    return JoinRequest(attempt, worker_rank, "127.0.0.1", f"host-{worker_rank}", 100 + worker_rank, "cpu", data)


def log_steps(store: ObjectStore, generation: int, first: int, stop: int, *, ranks: int = 2) -> None:
    """Entries of the gradient log as far as the supervisor looks at them: they are there."""
    for step in range(first, stop):
        for rank in range(ranks):
            store.put(log_key(generation, step, rank), b"an entry")


def numeric_fault(step: int, kind: FaultKind = FaultKind.SPIKE, onset: int | None = None) -> Fault:
    """Bad numbers."""
    return Fault(kind=kind, step=step, onset=step if onset is None else onset, time_s=1_000_000.0, signature=str(kind))


def spike(step: int, *, generation: int = 1) -> Incident:
    """What rank 0 says of a spike."""
    return Incident(generation, step, step, FaultKind.SPIKE, 14.2, {"reason": "loss z 14.2", "rank": -1})


def lost_process(step: int) -> Fault:
    """A lost process."""
    return Fault(kind=FaultKind.PROCESS, step=step, onset=step, time_s=1_000_000.0, detail="killed")


def tiny_shards(rank: int = 0, world_size: int = 1, seed: int = 0) -> list[Shard]:
    """One rank's share of a tiny state; states of neighbouring seeds are near each other."""
    whole = np.random.default_rng(0).normal(size=ELEMENTS) * (1.0 + 1e-4 * seed)
    size = ELEMENTS // world_size
    part = slice(rank * size, (rank + 1) * size)
    return [
        Shard(ShardSpec("w", component, (ELEMENTS,), part.start, size), (whole + index).astype(np.float32)[part])
        for index, component in enumerate(("exp_avg", "exp_avg_sq", "master"))
    ]


def written_part(
    store: ObjectStore,
    ref: CheckpointRef,
    rank: int,
    world_size: int = 1,
    seed: int = 0,
    *,
    base: Keyframe | None = None,
) -> RankPart:
    """One rank's part of a tiny state, really written."""
    return write_part(
        store,
        generation=ref.generation,
        step=ref.step,
        rank=rank,
        world_size=world_size,
        shards=tiny_shards(rank, world_size, seed),
        cancelled=lambda: False,
        base=base,
    )


def checkpoint_meta(
    step: int, world_size: int = 1, eval_loss: float | None = None, eval_set: str = "a"
) -> CheckpointMeta:
    """What belongs to that state."""
    return CheckpointMeta(
        step=step,
        applied=step,
        tokens=step * 2048,
        data_position=step * 16,
        world_size=world_size,
        threads=1,
        precision="bf16",
        config_digest="c" * 64,
        eval_loss=eval_loss,
        eval_set=None if eval_loss is None else eval_set * 16,
    )


class Staff:
    """A supervisor's parts, wired as in a run, without the thread that drives it.

    Args:
        store: The run's store.
        folder: The run's local folder.
        config: The run.
        writer: Names the claim in the journal.
        compactor: Folds what stays for long.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: Path,
        config: RunConfig | None = None,
        *,
        writer: str = "staff",
        compactor: Compactor | None = None,
    ) -> None:
        self.store = store
        self.config = config or small_config()
        ensure_format(store)
        self.ledger = Ledger(store, folder, writer=writer, deadline_s=self.config.journal.deadline_s)
        self.keeper = Keeper(self.config, self.ledger, store, compactor=compactor)
        self.published: list[Committed] = []
        self.committer = Committer(
            store,
            deadline_s=self.config.checkpoint.deadline_s,
            on_commit=self._published,
            on_missed=self.keeper.missed,
            parent_of=lambda generation: parent_of(self.ledger.record, generation),
        )
        self.decider = Decider(
            self.config,
            self.ledger,
            store,
            owner="staff",
            stop_step=None,
            on_generation=self.committer.advance,
        )
        self.membership = Membership(host="127.0.0.1", timeout_s=LIMIT_S)
        self.answering = Answering(self.config, self.ledger, decider=self.decider, committer=self.committer)
        self.hearing = Hearing(
            self.config,
            self.ledger,
            decider=self.decider,
            answering=self.answering,
            keeper=self.keeper,
            committer=self.committer,
            membership=self.membership,
        )

    def _published(self, done: Committed) -> None:
        self.keeper.committed(done)
        self.published.append(done)

    def begin(self) -> None:
        """Get the run to the point where workers of attempt 1 do steps of generation 1."""
        self.ledger.note("run.started", config="{}", owner="staff", stop_step=None, changes=[])
        self.decider.start()
        self.ledger.move(RunEvent.RESOURCES_READY)
        self.ledger.note("attempt.started", attempt=1, workers=self.config.cluster.workers)
        self.hearing.begin(1)
        self.membership.expect(attempt=1, generation=1, workers=self.config.cluster.workers)

    def steps(self, first: int, last: int, **changes: Any) -> None:
        """Rank 0 reports the steps first to last, both included."""
        generation = self.ledger.record.generation
        rows = tuple(step_row(step, generation=generation, **changes) for step in range(first, last + 1))
        self.hearing.heartbeat(beat(attempt=self.ledger.record.attempt, step=last, generation=generation, rows=rows))

    def checkpoint(
        self,
        step: int,
        *,
        good: bool = False,
        generation: int | None = None,
        base: Keyframe | None = None,
        eval_loss: float | None = None,
        eval_set: str = "a",
    ) -> CheckpointRef:
        """Commit a real, tiny checkpoint."""
        ref = CheckpointRef(self.ledger.record.generation if generation is None else generation, step)
        meta = checkpoint_meta(step, eval_loss=eval_loss, eval_set=eval_set)
        self.committer.add(written_part(self.store, ref, 0, seed=step, base=base), meta, 0.0)
        assert self.committer.drain(LIMIT_S)
        if good:
            self.ledger.note("checkpoint.good", step=step, generation=ref.generation)
        return ref

    def keyframe(self, step: int) -> Keyframe:
        """Commit a checkpoint that is known good; gives what the next ones can build on."""
        ref = CheckpointRef(self.ledger.record.generation, step)
        part = written_part(self.store, ref, 0, seed=step)
        self.committer.add(part, checkpoint_meta(step), 0.0)
        assert self.committer.drain(LIMIT_S)
        self.ledger.note("checkpoint.good", step=step, generation=ref.generation)
        return tiny_keyframe(part, tiny_shards(seed=step))

    @property
    def journal(self) -> list[str]:
        """The kinds of what the journal on the store says, in order."""
        return kinds(Journal.read(self.store))

    @property
    def steps_on_store(self) -> list[int]:
        """The steps of the checkpoints that are there."""
        return [commit.step for commit in scan_commits(self.store).commits]

    def close(self) -> None:
        """End the thread."""
        self.committer.close()


def lose_process_with_log(staff: Staff) -> None:
    """Die at step 15, with a checkpoint of step 10 and the steps up to 16 in the gradient log."""
    staff.steps(0, 14)
    staff.checkpoint(10)
    log_steps(staff.store, 1, 8, 17)
    staff.ledger.move(RunEvent.FAULT)
    staff.decider.decide(lost_process(15))


def kinds(events: Sequence[Event], *, without: Sequence[str] = ()) -> list[str]:
    """The kinds of events, in order."""
    return [event.kind for event in events if event.kind not in without]


def data_of(events: Sequence[Event], kind: str) -> Mapping[str, Any]:
    """The data of the last event of a kind."""
    return [event for event in events if event.kind == kind][-1].data


def within(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Whether something comes true before the limit."""
    pause = threading.Event()
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.01)
    return True
