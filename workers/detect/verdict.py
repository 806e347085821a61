"""One verdict per step, from reduced values, taken on one rank and obeyed by all. Pure.

`judge` is a function of state, observation and policy. Its state is part of the checkpoint: after a rollback
the baselines are those of the step that was restored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from stormsail.platform.messages import FaultKind, Incident
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.ranks import RankReading, read_ranks
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.state import DetectorState

Evidence = dict[str, float | int | str | list[int]]

FAULTS = {
    Kind.NONFINITE: FaultKind.NONFINITE,
    Kind.SPIKE: FaultKind.SPIKE,
    Kind.GRADIENT: FaultKind.SPIKE,
    Kind.DIVERGENCE: FaultKind.DIVERGENCE,
    Kind.LEVEL_SHIFT: FaultKind.DIVERGENCE,
    Kind.OSCILLATION: FaultKind.DIVERGENCE,
    Kind.RESUME_FAULT: FaultKind.RESUME_FAULT,
    Kind.RANK: FaultKind.RANK_OUTLIER,
}
"""What an incident of each kind is called when the supervisor hears of it."""

RANKS = "ranks"
"""Name of the comparison of ranks, beside the names of the rules."""

# A curve proves no cause of a swing, and one rank is not the step: neither makes the step itself suspect.
_NOT_THE_STEP = (Kind.OSCILLATION, Kind.RANK)


# Of a non-finite step, by whether its loss was finite: what went wrong, and where to look.
_CAUSES = {
    True: ("gradient", "if it comes again, look at the layer named first and at the learning rate"),
    False: ("loss", "if it comes again, look at the batch and at the model's own arithmetic"),
}


class VerdictKind(StrEnum):
    """What becomes of a step's gradient."""

    HEALTHY = "healthy"
    WATCH = "watch"
    SKIP = "skip"
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

    @property
    def flagged(self) -> bool:
        """Whether the step is out of the ordinary, though no incident."""
        return self in (VerdictKind.WATCH, VerdictKind.SKIP)


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
        group_norms: Gradient norm before clipping of each layer group.
        rank_losses: Mean loss of each rank over its own tokens, in nats.
        rank_norms: Norm of each rank's shard of the gradient.
        restart: The state was loaded just before this step, and nothing else says whether it is the right one.
    """

    step: int
    loss: float
    grad_norm: float
    nonfinite_gradients: int
    nonfinite_state: bool
    tokens: int
    group_norms: tuple[float, ...] = ()
    rank_losses: tuple[float, ...] = ()
    rank_norms: tuple[float, ...] = ()
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found at one step.

    Attributes:
        kind: What to do with the gradient.
        fault: Which kind of incident, or None.
        onset: First step of the run of anomalous ones that this step belongs to, or None.
        severity: In the unit of the rule in front, or the count of non-finite elements.
        evidence: Figures for the journal and the report; finite numbers only.
        reason: Why, in one line; "" for a healthy step.
        findings: What each rule said, by its name, the one in front first.
        clip_to: Norm to clip the gradient to; infinite: as the configuration says.
        layers: Layer groups whose norm is out of the ordinary, as (index, ratio to its level), furthest first.
        rank: The rank that is furthest from its share.
    """

    kind: VerdictKind
    fault: FaultKind | None = None
    onset: int | None = None
    severity: float = 0.0
    evidence: Evidence = field(default_factory=dict)
    reason: str = ""
    findings: tuple[tuple[str, Finding], ...] = ()
    clip_to: float = math.inf
    layers: tuple[tuple[int, float], ...] = ()
    rank: RankReading = field(default_factory=RankReading)

    def incident(self, generation: int, step: int) -> Incident:
        """The message to the supervisor about this step. Raises `ValueError` if this is no incident."""
        if self.kind is not VerdictKind.INCIDENT or self.fault is None or self.onset is None:
            raise ValueError(f"a {self.kind} verdict is no incident")
        return Incident(generation, step, self.onset, self.fault, self.severity, self.evidence)


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
        return _dropped(state, seen, policy)
    return _finite(state, seen, policy)


def _poisoned(state: DetectorState, seen: Observation) -> tuple[DetectorState, Verdict]:
    onset = state.drops.first if state.drops.row else seen.step
    return state, Verdict(
        VerdictKind.INCIDENT,
        fault=FaultKind.NONFINITE,
        onset=onset,
        severity=float(max(seen.nonfinite_gradients, 1)),
        evidence=numbers(seen) | {"what": "state"},
        reason="weights or optimizer moments are not finite; only an earlier state helps",
    )


def _dropped(state: DetectorState, seen: Observation, policy: Policy) -> tuple[DetectorState, Verdict]:
    drops = state.drops.dropped(seen.step)
    limits, lately = policy.nonfinite, drops.lately
    in_row, often = drops.row >= limits.patience, lately.too_many(limits.share, limits.patience)
    used_up = in_row or often
    counted = f"{drops.row} in a row, limit {limits.patience}"
    if often and not in_row:
        counted = f"{lately.count} in all, {lately.share:.0%} of the last 20 or so steps, limit {limits.share:.0%}"
    cause, look = _CAUSES[math.isfinite(seen.loss)]
    return replace(state, drops=drops), Verdict(
        VerdictKind.INCIDENT if used_up else VerdictKind.DROP,
        fault=FaultKind.NONFINITE if used_up else None,
        onset=lately.onset(seen.step) if often and not in_row else drops.first,
        severity=float(max(seen.nonfinite_gradients, 1)),
        evidence=numbers(seen) | {"what": cause, "drops_in_a_row": drops.row, "drops_share": lately.share},
        reason=f"non-finite {cause}, update dropped on all ranks ({counted}); {look}",
        layers=state.layers.outliers(seen.group_norms, policy.beside.layers),
    )


def _finite(state: DetectorState, seen: Observation, policy: Policy) -> tuple[DetectorState, Verdict]:
    row = Row(seen.step, seen.loss, seen.grad_norm, restart=seen.restart)
    rules, findings = state.rules_after(row, policy.rules)
    calm = not any(finding.kind not in _NOT_THE_STEP for _, finding in findings)
    ranks, reading = read_ranks(state.ranks, seen.rank_losses, seen.rank_norms, policy.ranks, calm=calm)
    findings += _about_rank(reading, policy)
    learned = DetectorState(
        rules=rules,
        drops=state.drops.over(),
        layers=state.layers.learn(seen.group_norms) if calm else state.layers,
        ranks=ranks,
    )
    if not findings:
        return learned, Verdict(VerdictKind.HEALTHY, rank=reading)
    ordered = tuple(sorted(findings, key=lambda item: -item[1].level.rank))  # stable: rules stay in their order
    name, first = ordered[0]
    kind = _kind(ordered, policy)
    return learned, Verdict(
        kind,
        fault=FAULTS[first.kind] if kind is VerdictKind.INCIDENT else None,
        onset=seen.step if first.onset is None else min(first.onset, seen.step),
        severity=first.severity,
        evidence=numbers(seen) | _opinions(name, ordered),
        reason=first.reason,
        findings=ordered,
        clip_to=_clip_to(ordered) if kind is VerdictKind.WATCH and policy.on_watch == "clip" else math.inf,
        layers=state.layers.outliers(seen.group_norms, policy.beside.layers),
        rank=reading,
    )


def _kind(findings: tuple[tuple[str, Finding], ...], policy: Policy) -> VerdictKind:
    if findings[0][1].level is Level.INCIDENT:
        return VerdictKind.INCIDENT
    kinds = {finding.kind for _, finding in findings}
    if Kind.GRADIENT in kinds and policy.on_watch == "skip":
        return VerdictKind.SKIP
    return VerdictKind.WATCH if kinds - set(_NOT_THE_STEP) else VerdictKind.HEALTHY


def _clip_to(findings: tuple[tuple[str, Finding], ...]) -> float:
    return min((finding.normal for _, finding in findings if finding.normal is not None), default=math.inf)


def _about_rank(reading: RankReading, policy: Policy) -> list[tuple[str, Finding]]:
    limits = policy.ranks
    if reading.in_row < limits.watch_steps:
        return []
    reason = (
        f"the {reading.what} of rank {reading.rank} has left its share for {reading.in_row} steps "
        f"(z {reading.z:.1f}, limit {limits.z:g}), while all ranks together look healthy"
    )
    level = Level.INCIDENT if 0 < limits.incident_steps <= reading.in_row else Level.WATCH
    return [(RANKS, Finding(level, Kind.RANK, reading.z, reason))]


def numbers(seen: Observation) -> Evidence:
    """The observation's figures; one that is not finite becomes its name, since JSON has no such number."""
    found: Evidence = {"nonfinite_gradients": seen.nonfinite_gradients, "tokens": seen.tokens}
    for name, value in (("loss", seen.loss), ("grad_norm", seen.grad_norm)):
        found[name] = value if math.isfinite(value) else str(value)
    return found


def _opinions(name: str, findings: tuple[tuple[str, Finding], ...]) -> Evidence:
    also = ", ".join(f"{other} ({finding.level}): {finding.reason}" for other, finding in findings[1:])
    return {"detector": name, "also": also} if also else {"detector": name}
