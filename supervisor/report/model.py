"""What a report holds. Times named `_s` are seconds since the run's start or lengths in seconds."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """How long each phase of a recovery took, in seconds, over all decisions of an incident."""

    detect_s: float = 0.0
    decide_s: float = 0.0
    restart_s: float = 0.0
    load_s: float = 0.0
    catch_up_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All phases together: the time to recovery."""
        return self.detect_s + self.decide_s + self.restart_s + self.load_s + self.catch_up_s


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """One decision of the ladder.

    Attributes:
        tier: 1 to 3, 4 for exhausted; None where the run was stopped without the ladder.
        tier_name: Its name.
        decided_s: When.
        restore: The checkpoint that was chosen, or None for the initial state.
        lr_factor: Factor on the learning rate from there on.
        precision: Precision from there on.
        fp32_until: First step again in the run's precision, or None.
        reason: What happened and what was done, in one line.
        action: What was done.
    """

    tier: int | None
    tier_name: str
    decided_s: float
    restore: dict[str, int] | None
    lr_factor: float
    precision: str
    fp32_until: int | None
    reason: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceEntry:
    """What was gathered before a process that hung was ended.

    Attributes:
        finding: What it says, in one line.
        keys: Objects on the run's storage.
        folder: The same files on the supervisor's machine.
        problem: What could not be stored, or "".
    """

    finding: str
    keys: tuple[str, ...]
    folder: str
    problem: str


@dataclass(frozen=True, slots=True)
class IncidentEntry:
    """One episode of the ladder, from the fault to the first new step.

    Attributes:
        number: Counts from 1 within the report.
        episode: Its number in the ladder, or None for an error that no repair was tried for.
        kind: Kind of the first fault.
        tier: The tier that cured it, or the last one tried.
        tier_name: Its name.
        tiers_tried: All tiers tried, in order.
        onset: First anomalous step.
        step: Step of the first fault.
        detected_s: When the first fault was noticed.
        decided_s: When the last decision was taken (None: none).
        recovered_s: When the first new step beyond the one reached before was done (None: never).
        mttr_s: From the fault to that step, healthy time between a repair and a recurrence left out (None: never).
        lost_steps: Steps computed a second time because of it.
        phases: Where the time went.
        reason: Why the last decision was taken.
        decisions: All decisions.
        recovered: Whether the run got beyond it.
        closed: Whether its episode was closed (a numeric one needs its probation for that).
        rank: Rank of the first fault, or None.
        error: What was seen.
        replay: What an FP32 replay showed, or None.
        restored_from: Places that the last state came from, the nearest first; empty for none, and for a fresh start.
        evidence: What was gathered at each hang.
        diagnosis: What the first incident was found to be, by experiment or by its rows alone (cause, confidence, evidence, ...), or None.
        samples: First and last position in the data order of the global batch at the fault's step, or None.
    """

    number: int
    episode: int | None
    kind: str
    tier: int | None
    tier_name: str
    tiers_tried: tuple[int, ...]
    onset: int | None
    step: int | None
    detected_s: float
    decided_s: float | None
    recovered_s: float | None
    mttr_s: float | None
    lost_steps: int
    phases: PhaseTimes
    reason: str
    decisions: tuple[DecisionEntry, ...]
    recovered: bool
    closed: bool
    rank: int | None
    error: str
    replay: dict[str, object] | None
    restored_from: tuple[str, ...] = ()
    evidence: tuple[EvidenceEntry, ...] = ()
    diagnosis: dict[str, object] | None = None
    samples: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointsEntry:
    """Checkpoints of the whole run; `last_*` is the newest committed one."""

    committed: int = 0
    good: int = 0
    missed: int = 0
    corrupt: int = 0
    deleted: int = 0
    bytes: int = 0
    last_step: int | None = None
    last_generation: int | None = None
    last_digest: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluationEntry:
    """What became of evaluating on held-out samples; of the final line only.

    Attributes:
        count: Evaluations.
        last_step: Step of the newest one.
        last_loss: Its loss, in nats; None if it was not finite.
        best_step: Step of the lowest one over the samples that the newest is over, the older of two equal ones; None where none was
            finite.
        best_loss: Its loss, in nats.
        best_kept: Whether its checkpoint was committed and is still there.
        best_damaged: Whether its checkpoint failed verification.
        thrown_away: Evaluations of states that the run does not stand on any more, besides `count`.
        other_samples: Evaluations over other samples, which do not compare with that one.
    """

    count: int
    last_step: int | None
    last_loss: float | None
    best_step: int | None
    best_loss: float | None
    best_kept: bool
    best_damaged: bool = False
    thrown_away: int = 0
    other_samples: int = 0


@dataclass(frozen=True, slots=True)
class AlertsEntry:
    """What people were told; None of it where no channel was configured.

    Attributes:
        sent: Messages that were delivered.
        lost: Messages that were given up.
        why: Why the last of those was, or why a channel could not be used; "".
    """

    sent: int = 0
    lost: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class ShadowEntry:
    """What shadow mode left undone.

    Attributes:
        step: Step of the fault.
        kind: Its kind.
        error: What was seen.
        action: What would have been done.
        diagnosis: What it is likely to be, in words; "" where nobody could tell.
    """

    step: int | None
    kind: str
    error: str
    action: str
    diagnosis: str = ""


@dataclass(frozen=True, slots=True)
class DrillFault:
    """One injected fault; incident None: it needed no repair by the ladder."""

    index: int
    kind: str
    step: int | None
    incident: int | None
    recovered: bool


@dataclass(frozen=True, slots=True)
class Twin:
    """The comparison with an undisturbed twin."""

    step: int | None
    digest: str
    twin_digest: str
    identical: bool


@dataclass(frozen=True, slots=True)
class DrillEntry:
    """What was broken on purpose, and what became of it."""

    fired: int
    recovered: int
    faults: tuple[DrillFault, ...]
    twin: Twin | None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run. Every second of `wall_s` is in exactly one of the nine lengths from `productive_s` to `idle_s`.

    Attributes:
        run: Its name.
        stormsail: Version of Stormsail.
        outcome: done, stopped, exhausted, failed, or running.
        outcome_reason: Why, where that is not plain.
        exit_code: Exit code of the outcome; None while it runs.
        started_time_s: Start, in seconds since the epoch.
        wall_s: From the start to the last step (or to the end, or to the report).
        ettr: Productive time over wall time.
        ettr_without_queueing: Productive time over wall time without idle time.
        productive_s: First execution of steps that the final line holds.
        replay_s: Steps done again, or thrown away.
        evaluate_s: Evaluating on held-out samples, between two steps: neither productive nor lost.
        stall_s: Training waits for a checkpoint, for data, or for nothing that is known.
        detect_s: From faults to their alarms.
        decide_s: From alarms to decisions.
        restart_s: Processes, process group and engines, the first start included.
        load_s: Loading and verifying state.
        idle_s: Waiting for resources, or the run was over until somebody continued it.
        lost_steps: Steps computed twice.
        steps: Steps of the final line.
        applied: Optimizer updates in them.
        tokens: Real tokens in them.
        final_loss: Loss of the last step of the final line.
        final_digest: State digest at the end (None before it).
        dropped_updates: Non-finite updates that were not applied.
        empty_steps: Steps without a real token.
        watched_steps: Steps flagged without consequence.
    """

    run: str
    stormsail: str
    outcome: str
    outcome_reason: str
    exit_code: int | None
    started_time_s: float
    wall_s: float
    ettr: float
    ettr_without_queueing: float
    productive_s: float
    replay_s: float
    evaluate_s: float
    stall_s: float
    detect_s: float
    decide_s: float
    restart_s: float
    load_s: float
    idle_s: float
    lost_steps: int
    steps: int
    applied: int
    tokens: int
    final_loss: float | None
    final_digest: str | None
    dropped_updates: int
    empty_steps: int
    watched_steps: int
    incidents: tuple[IncidentEntry, ...] = ()
    lr_events: tuple[dict[str, object], ...] = ()
    checkpoints: CheckpointsEntry = field(default_factory=CheckpointsEntry)
    evaluation: EvaluationEntry | None = None
    alerts: AlertsEntry = field(default_factory=AlertsEntry)
    shadowed: tuple[ShadowEntry, ...] = ()
    drill: DrillEntry | None = None

    def to_json(self) -> dict[str, object]:
        """Return the report as plain JSON values; a number that is not finite becomes null."""
        return {item.name: _plain(getattr(self, item.name)) for item in dataclasses.fields(self)}


def _plain(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
