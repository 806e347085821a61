"""What processes of a run say to each other: small frozen values, no behaviour.

Workers speak to the supervisor and the supervisor to the workers only in these. They cross process
borders by pickle inside one run and one version, never through the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it names checkpoints, and so needs this module
    from stormsail.platform.diagnosis import ReplayPlan


class Phase(StrEnum):
    """What a worker is busy with; time limits depend on it."""

    START = "start"
    JOIN = "join"
    BUILD = "build"
    LOAD = "load"
    STEP = "step"
    CONSULT = "consult"
    REPLAY = "replay"
    EVALUATE = "evaluate"
    SAVE = "save"
    FINISH = "finish"
    DONE = "done"


class FaultKind(StrEnum):
    """What happened, as far as it can be seen without a diagnosis."""

    PROCESS = "process"
    HANG = "hang"
    USER_CODE = "user_code"
    SPIKE = "spike"
    NONFINITE = "nonfinite"
    RESUME_FAULT = "resume_fault"
    DIVERGENCE = "divergence"
    RANK_OUTLIER = "rank_outlier"
    DESYNC = "desync"

    @property
    def numeric(self) -> bool:
        """Whether the numbers are at fault rather than the machines."""
        return self not in (FaultKind.PROCESS, FaultKind.HANG, FaultKind.USER_CODE)


class Tier(StrEnum):
    """The ladder's tiers, mildest first; `EXHAUSTED` ends it."""

    RESUME = "resume"
    ROLLBACK = "rollback"
    FP32_REPLAY = "fp32_replay"
    EXHAUSTED = "exhausted"

    @property
    def number(self) -> int:
        """1 to 3, and 4 for exhausted."""
        return list(Tier).index(self) + 1


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """Names one committed checkpoint: a step can be committed again by a later generation."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Steps of the gradient log that one generation wrote.

    Attributes:
        generation: Whose log.
        first: First step.
        stop: One past the last step.
    """

    generation: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class LrEvent:
    """One decided change of the learning rate.

    Attributes:
        step: First step that it applies to.
        factor: Multiplies what is in force (0 < factor <= 1).
        generation: The generation that began with it.
        released_step: Step from which the factor ramps back to 1, or None while it is held.
    """

    step: int
    factor: float
    generation: int
    released_step: int | None = None


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A worker process asks for a place in the world, and says which data it reads."""

    attempt: int
    worker_rank: int
    node_ip: str
    hostname: str
    pid: int
    device: str
    data_digest: str


@dataclass(frozen=True, slots=True)
class World:
    """The process group of one generation, as the supervisor formed it.

    Attributes:
        generation: Carried by everything that this world writes.
        rank: The receiver's rank, 0 to world_size - 1.
        world_size: Ranks in the group.
        store_host: Host of the TCP store that the ranks meet at; it is outside the ranks.
        store_port: Its port.
    """

    generation: int
    rank: int
    world_size: int
    store_host: str
    store_port: int


@dataclass(frozen=True, slots=True)
class Directive:
    """What all ranks do next, at the same step.

    Attributes:
        generation: The new generation, in force from here on.
        tier: The ladder tier that this is, or None for a plain start.
        restore: The checkpoint to load, or None to begin from the initial state.
        precision: Precision of the engine from here on.
        fp32_until: First step that is again computed in the run's precision (tier 3), or None.
        lr_events: All events of the live line, oldest first.
        skip: Sample ranges [start, stop) to leave out, as absolute positions in the data order.
        stop_step: If set, end after this step (a stop on request), saving state.
        stop_reason: Why to stop, or "".
        reason: Why this was decided, in one line.
        expected_losses: (step, loss) recorded earlier for the first steps after the restore; they must come again.
        exact: Whether they must come again bit for bit (same precision, world size and LR).
        replay: Steps to take from the gradient log after the restore, oldest first, without a gap; none to take none.
        experiment: Nothing is decided yet: compute these steps again and report (`Supervisor.replayed`); the rest is void.
    """

    generation: int
    tier: Tier | None = None
    restore: CheckpointRef | None = None
    precision: str = "bf16"
    fp32_until: int | None = None
    lr_events: tuple[LrEvent, ...] = ()
    skip: tuple[tuple[int, int], ...] = ()
    stop_step: int | None = None
    stop_reason: str = ""
    reason: str = ""
    expected_losses: tuple[tuple[int, float], ...] = ()
    exact: bool = False
    replay: tuple[LogSpan, ...] = ()
    experiment: ReplayPlan | None = None

    @property
    def first_step(self) -> int:
        """The step that training goes on with."""
        return self.replay[-1].stop if self.replay else (self.restore.step if self.restore else 0)


@dataclass(frozen=True, slots=True)
class Placement:
    """Everything that a worker needs to start: its place in the world and what to do there.

    Attributes:
        world: The process group to join.
        directive: What to load and how to go on; decided once, the same for all ranks.
        fired: How often each drill fault has fired so far, by its index in `drill.faults`.
    """

    world: World
    directive: Directive
    fired: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Incident:
    """Rank 0 says that the numbers need a decision.

    Attributes:
        generation: Generation in which it was seen.
        step: Step at which the verdict fell.
        onset: First anomalous step.
        kind: One of the numeric kinds.
        severity: In the unit of the rule that found it; the count of non-finite elements where numbers are not finite.
        evidence: Figures that the report shows; among them `detector` (the rule), `layers`, `ranks`, `batch` (a digest of its tokens) and
            `samples` (first and last position of the step's global batch in the data order);
            of a non-finite one `what`: the `loss`, the `gradient`, or the `state` (weights and moments).
    """

    generation: int
    step: int
    onset: int
    kind: FaultKind
    severity: float
    evidence: dict[str, float | int | str | list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One finished step, as rank 0 saw it; sent in batches, never awaited.

    Attributes:
        generation: Generation that computed it.
        step: Global batch consumed (0-based).
        applied: Optimizer updates so far, this step's included.
        loss: Token-weighted mean over all ranks, in nats.
        grad_norm: Global norm before clipping (inf or nan if non-finite).
        clipped_norm: Norm after clipping.
        lr: Learning rate that the optimizer really used.
        lr_factor: The ladder's factor in it.
        tokens: Real tokens in the global batch.
        step_s: Wall seconds of the step.
        time_s: Seconds since the epoch at its end.
        precision: bf16 or fp32.
        outcome: "applied", "dropped" (non-finite), "skipped" (out of range, `detect.on_watch`) or "empty" (no real token).
        flagged: Whether the detectors found it anomalous, though not enough for an incident.
        batch: Digest of the global batch's token ids: the same step must read the same data whenever it is computed.
        values: Everything else that was measured, by the names of `step_values.STEP_VALUES`; absent is absent, not 0.
        ranks: In sampled rows, one number per rank, by the names of `step_values.RANK_VALUES`.
    """

    generation: int
    step: int
    applied: int
    loss: float
    grad_norm: float
    clipped_norm: float
    lr: float
    lr_factor: float
    tokens: int
    step_s: float
    time_s: float
    precision: str
    outcome: str
    flagged: bool = False
    batch: int = 0
    values: dict[str, float] = field(default_factory=dict)
    ranks: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One rank is at work; sent from a thread of its own, one way.

    Attributes:
        attempt: Attempt that the process belongs to.
        generation: Generation that it works for.
        rank: Its rank.
        phase: What it does.
        step: The step it is at.
        rows: New rows of rank 0 since its last heartbeat.
        lines: Events that it wants recorded, as (number, kind, fields); numbered from 1 in each process, so that
            a heartbeat said twice is recorded once.
        flight: Its last collectives as JSON, if it was asked for them and this is not "".
    """

    attempt: int
    generation: int
    rank: int
    phase: Phase
    step: int
    rows: tuple[StepRow, ...] = ()
    lines: tuple[tuple[int, str, dict[str, object]], ...] = ()
    flight: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What the supervisor answers: requests from people for rank 0, or an order to leave.

    Attributes:
        stop_requested: A person asked to stop; rank 0 carries it into the next packed collective.
        abort: Not "": this process is of an attempt that is over, and exits.
        evidence: Somebody hangs: the next heartbeat is to bring the last collectives.
    """

    stop_requested: str = ""
    abort: str = ""
    evidence: bool = False


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker could not go on and says why before it dies.

    Attributes:
        attempt: Attempt it belonged to.
        rank: Its rank (worker index while it has no world).
        step: Step it was at, or -1 before the first.
        origin: "user" (the user's code raised), "ours", or "peer" (another rank was lost first).
        error: Type and message in one line.
        details: Traceback text, first cause first.
        exit_code: The code that the command ends with, should nothing be tried again.
        time_s: Seconds since the epoch.
    """

    attempt: int
    rank: int
    step: int
    origin: str
    error: str
    details: str
    exit_code: int
    time_s: float
