"""One verdict per step, from reduced values, taken on one rank and obeyed by all. Pure.

`judge` is a function of state, observation and policy. Its state is part of the checkpoint: after a rollback
the baselines are those of the step that was restored.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from stormsail.platform.config.model import DetectSection, NonfiniteSection
from stormsail.platform.errors import StateMismatchError
from stormsail.platform.messages import FaultKind, Incident
from stormsail.workers.detect.nonfinite import DropState
from stormsail.workers.detect.spike import Reading, SpikeState, advance, is_incident, read


class VerdictKind(StrEnum):
    """What becomes of a step's gradient."""

    HEALTHY = "healthy"
    WATCH = "watch"
    DROP = "drop"
    EMPTY = "empty"
    INCIDENT = "incident"

    @property
    def code(self) -> int:
        """The small integer that rank 0 broadcasts."""
        return list(VerdictKind).index(self)

    @classmethod
    def from_code(cls, code: int) -> VerdictKind:
        """The kind behind a broadcast integer. Raises `ValueError`."""
        if not 0 <= code < len(cls):
            raise ValueError(f"{code} is no verdict")
        return list(cls)[code]

    @property
    def applies_update(self) -> bool:
        """Whether the optimizer steps on this gradient."""
        return self in (VerdictKind.HEALTHY, VerdictKind.WATCH)


@dataclass(frozen=True, slots=True)
class Observation:
    """What all ranks together saw in one step.

    Attributes:
        step: Global batch (0-based).
        loss: Token-weighted mean over all ranks, in nats.
        grad_norm: Global norm before clipping.
        nonfinite_gradients: Non-finite gradient elements on all ranks.
        nonfinite_state: Whether any weight or moment is non-finite.
        tokens: Real tokens of the global batch.
    """

    step: int
    loss: float
    grad_norm: float
    nonfinite_gradients: int
    nonfinite_state: bool
    tokens: int


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits, from the configuration."""

    detect: DetectSection = field(default_factory=DetectSection)
    nonfinite: NonfiniteSection = field(default_factory=NonfiniteSection)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found at one step.

    Attributes:
        kind: What to do with the gradient.
        fault: Which kind of incident, or None.
        onset: First step of the run of anomalous ones that this step belongs to, or None.
        severity: Largest robust z-score of the run, or the count of non-finite elements.
        evidence: Figures for the journal and the report; finite numbers only.
        reason: Why, in one line; "" for a healthy step.
    """

    kind: VerdictKind
    fault: FaultKind | None = None
    onset: int | None = None
    severity: float = 0.0
    evidence: dict[str, float | int | str | list[int]] = field(default_factory=dict)
    reason: str = ""

    def incident(self, generation: int, step: int) -> Incident:
        """The message to the supervisor about this step. Raises `ValueError` if this is no incident."""
        if self.kind is not VerdictKind.INCIDENT or self.fault is None or self.onset is None:
            raise ValueError(f"a {self.kind} verdict is no incident")
        return Incident(generation, step, self.onset, self.fault, self.severity, self.evidence)


@dataclass(frozen=True, slots=True)
class DetectorState:
    """Everything that the detectors remember; of bounded size, part of every checkpoint."""

    spike: SpikeState = field(default_factory=SpikeState)
    drops: DropState = field(default_factory=DropState)

    def to_json(self) -> dict[str, object]:
        """As plain JSON values."""
        plain: dict[str, object] = _STATE.dump_python(self, mode="json")
        return plain

    @classmethod
    def from_json(cls, value: object) -> DetectorState:
        """Back from `to_json`, floats bit for bit. Raises `StateMismatchError` if anything is missing, extra or wrong."""
        try:
            state = _STATE.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise StateMismatchError(
                f"the detectors' saved state cannot be read: {first['msg']}", where=where
            ) from error
        if _canonical(state.to_json()) != _canonical(value):
            raise StateMismatchError(
                "the detectors' saved state is of another version: its fields differ",
                todo="go on with the version of Stormsail that wrote it",
            )
        return state


_STATE = TypeAdapter(DetectorState)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def judge(state: DetectorState, seen: Observation, policy: Policy) -> tuple[DetectorState, Verdict]:
    """Judge one step and learn from it.

    Returns:
        The state to judge the next step with, and the verdict on this one.
    """
    if seen.nonfinite_state:
        return _poisoned(state, seen)
    if seen.tokens == 0:
        reason = "no real token in the whole batch; weights unchanged"
        return state, Verdict(VerdictKind.EMPTY, reason=reason)
    if seen.nonfinite_gradients or not (math.isfinite(seen.loss) and math.isfinite(seen.grad_norm)):
        return _dropped(state, seen, policy.nonfinite)
    return _finite(state, seen, policy.detect)


class Detector:
    """`judge` with its state held in one place: what the step loop of rank 0 carries (training thread only).

    Attributes:
        state: What is remembered now.
    """

    def __init__(self, detect: DetectSection, nonfinite: NonfiniteSection) -> None:
        self._policy = Policy(detect, nonfinite)
        self.state = DetectorState()

    def judge(self, seen: Observation) -> Verdict:
        """Judge one step and learn from it."""
        self.state, verdict = judge(self.state, seen, self._policy)
        return verdict

    def dump(self) -> dict[str, object]:
        """The state as plain JSON values."""
        return self.state.to_json()

    def load(self, saved: object) -> None:
        """Go back to a dumped state. Raises `CheckpointError`."""
        self.state = DetectorState.from_json(saved)

    def reset(self) -> None:
        """Forget everything."""
        self.state = DetectorState()


def _poisoned(state: DetectorState, seen: Observation) -> tuple[DetectorState, Verdict]:
    onset = state.drops.first if state.drops.row else seen.step
    return state, Verdict(
        VerdictKind.INCIDENT,
        fault=FaultKind.NONFINITE,
        onset=onset,
        severity=float(max(seen.nonfinite_gradients, 1)),
        evidence=_numbers(seen),
        reason="weights or optimizer moments are not finite",
    )


def _dropped(state: DetectorState, seen: Observation, policy: NonfiniteSection) -> tuple[DetectorState, Verdict]:
    drops = state.drops.dropped(seen.step)
    used_up = drops.row >= policy.patience
    cause = "gradient" if seen.nonfinite_gradients or not math.isfinite(seen.grad_norm) else "loss"
    return replace(state, drops=drops), Verdict(
        VerdictKind.INCIDENT if used_up else VerdictKind.DROP,
        fault=FaultKind.NONFINITE if used_up else None,
        onset=drops.first,
        severity=float(max(seen.nonfinite_gradients, 1)),
        evidence=_numbers(seen) | {"drops_in_a_row": drops.row},
        reason=f"non-finite {cause}, update dropped on all ranks ({drops.row} in a row, limit {policy.patience})",
    )


def _finite(state: DetectorState, seen: Observation, policy: DetectSection) -> tuple[DetectorState, Verdict]:
    reading = read(state.spike, seen.step, seen.loss, seen.grad_norm, policy)
    spike = advance(state.spike, reading, policy)
    learned = DetectorState(spike, DropState())
    if not reading.flagged:
        return learned, Verdict(VerdictKind.HEALTHY)
    incident = is_incident(spike, reading, policy)
    return learned, Verdict(
        VerdictKind.INCIDENT if incident else VerdictKind.WATCH,
        fault=FaultKind.SPIKE if incident else None,
        onset=spike.onset,
        severity=spike.peak_z,
        evidence=_numbers(seen) | _spike_evidence(state.spike, reading, spike),
        reason=_spike_reason(reading, spike, policy),
    )


def _numbers(seen: Observation) -> dict[str, float | int | str | list[int]]:
    """The observation's figures; one that is not finite becomes its name, since JSON has no such number."""
    found: dict[str, float | int | str | list[int]] = {
        "nonfinite_gradients": seen.nonfinite_gradients,
        "tokens": seen.tokens,
    }
    for name, value in (("loss", seen.loss), ("grad_norm", seen.grad_norm)):
        found[name] = value if math.isfinite(value) else str(value)
    return found


def _spike_evidence(
    before: SpikeState, reading: Reading, after: SpikeState
) -> dict[str, float | int | str | list[int]]:
    return {
        "loss_level": before.loss.level,
        "loss_z": reading.loss_z,
        "norm_z": reading.norm_z,
        "norm_ratio": reading.norm_ratio,
        "flagged_of_last": [sum(after.flags), len(after.flags)],
    }


def _spike_reason(reading: Reading, spike: SpikeState, policy: DetectSection) -> str:
    parts = []
    if reading.loss_flagged:
        parts.append(f"loss z {reading.loss_z:.1f} (limit {policy.z:g}, severe {policy.severe_z:g})")
    if reading.norm_flagged:
        parts.append(f"gradient norm {reading.norm_ratio:.1f} x its median (severe {policy.norm_ratio:g})")
    return f"{', '.join(parts)}; {sum(spike.flags)} of the last {len(spike.flags)} steps flagged since {spike.onset}"
