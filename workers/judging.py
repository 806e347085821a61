"""Rank 0's opinion of a step, and what it says about it: to the loop, to the journal, to the supervisor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from stormsail.platform.messages import FaultKind, Incident
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.rules.robust_spike import RobustSpike, RobustSpikeState
from stormsail.workers.detect.rules.row import Finding
from stormsail.workers.detect.stragglers import Slowness, read_slowness
from stormsail.workers.detect.verdict import Observation, Verdict, VerdictKind, judge, numbers
from stormsail.workers.detect.voice import NEAR_STEPS, Voice
from stormsail.workers.heartbeat import HeartbeatThread
from stormsail.workers.plan import Plan, differences
from stormsail.workers.rows import spike_values
from stormsail.workers.session import Session
from stormsail.workers.shadow import Told, softened
from stormsail.workers.vitals import Vitals

_SLOW_AGAIN_STEPS = 500
_SHADOW_QUIET_STEPS = 50


class Judge:
    """Judges the steps of one world; used by rank 0 only, in the training thread.

    Args:
        session: Holds the detectors' state, which rolls back with the rest.
        policy: What is judged by.
        beat: Takes what is worth a line.

    Attributes:
        seen: What the detectors were shown last, or None.
        verdict: The last one.
        slowness: What the last step said about slow ranks.
        distances: How far the last sampled step lay from the spike rule's baselines, by the names of row values.
    """

    def __init__(self, session: Session, policy: Policy, beat: HeartbeatThread) -> None:
        self._session = session
        self._policy = policy
        self._beat = beat
        self._voices: dict[str, Voice] = {}
        self._slow_state: tuple[float, ...] = ()
        self._slow_said = -_SLOW_AGAIN_STEPS
        self.seen: Observation | None = None
        self._shadowed = Told(_SHADOW_QUIET_STEPS)
        self.verdict = Verdict(VerdictKind.HEALTHY)
        self.slowness = Slowness()
        self.distances: dict[str, float] = {}

    def begin(self) -> None:
        """A directive was obeyed, maybe to an earlier step: findings are new ones from here on."""
        self._voices = {}
        self._slow_said = -_SLOW_AGAIN_STEPS

    def opinion(self, step: int, seen: Vitals, *, sampled: bool) -> Verdict:
        """Judge one step and learn from it."""
        session = self._session
        if sampled:
            self.distances = self._measure_distances(seen)
        self.seen = observe(step, seen, restart=session.unproven)
        session.detector, self.verdict = judge(session.detector, self.seen, self._policy)
        if self.verdict.kind not in (VerdictKind.DROP, VerdictKind.EMPTY):
            session.unproven = False
        broken = session.continuity.check(step, seen.loss)
        if broken and self.verdict.kind is not VerdictKind.INCIDENT:
            self.verdict = Verdict(
                VerdictKind.INCIDENT,
                fault=FaultKind.RESUME_FAULT,
                onset=step,
                evidence=self.verdict.evidence or numbers(self.seen),
                reason=broken,
            )
        self._slow_state, self.slowness = read_slowness(
            self._slow_state, tuple(seen.own_s.tolist()), self._policy.ranks, self._policy.beside.stall
        )
        return self.verdict

    def in_shadow(self, step: int, seen: Vitals) -> Verdict:
        """Shadow mode: the verdict with which training goes on; an incident is said, and nobody is asked."""
        if self.verdict.kind is VerdictKind.INCIDENT and self._shadowed.is_news(step):
            self._beat.line("incident.shadowed", **dataclasses.asdict(self.incident(step, seen)))
        self.verdict = softened(self.verdict, nonfinite=_bad(seen))
        return self.verdict

    def disagreement(self, step: int, ranks: tuple[int, ...], plans: Sequence[Plan]) -> None:
        """Ranks were about to do different things: that is the verdict on this step."""
        apart = differences(plans)
        shown = "; ".join(f"{field}: {', '.join(values)}" for field, values in apart.items())
        self.verdict = Verdict(
            VerdictKind.INCIDENT,
            fault=FaultKind.DESYNC,
            onset=step,
            severity=float(len(ranks)),
            evidence={"detector": "plan", "ranks": list(ranks), "fields": ", ".join(apart), "plans": shown},
            reason=f"ranks disagree about step {step} in {', '.join(apart) or 'nothing that they can name'}; "
            f"apart: {', '.join(map(str, ranks))}",
        )

    def incident(self, step: int, seen: Vitals) -> Incident:
        """The message to the supervisor about the incident of this step."""
        incident = self.verdict.incident(self._session.directive.generation, step)
        reading = self.verdict.rank
        out_of_share = [reading.rank] if reading.z > self._policy.ranks.z else []
        suspects = [seen.first_bad_rank] if seen.first_bad_rank >= 0 else out_of_share
        evidence = {
            "ranks": suspects,
            **incident.evidence,
            "reason": self.verdict.reason,
            "rank": seen.first_bad_rank,
            "parameter": self._parameter(seen.first_bad_parameter),
            "layers": self._layers(),
            "batch": seen.batch,
            "samples": self._samples(step),
        }
        return dataclasses.replace(incident, evidence=evidence)

    def note(self, step: int, seen: Vitals, outcome: str) -> None:
        """Hand over what is worth a line in the journal."""
        if outcome == "dropped":
            self._beat.line(
                "update.dropped",
                step=step,
                rank=seen.first_bad_rank,
                first_parameter=self._parameter(seen.first_bad_parameter),
                count=seen.nonfinite_gradients,
                reason=self.verdict.reason,
                samples=self._samples(step),
            )
        elif outcome == "empty":
            self._beat.line("step.empty", step=step)
        for name, finding in self.verdict.findings:
            self._say(step, name, finding, seen)
        self._note_slowness(step)

    def _measure_distances(self, seen: Vitals) -> dict[str, float]:
        for rule in self._policy.rules:
            state = self._session.detector.rules.get(rule.name)
            if isinstance(rule, RobustSpike) and isinstance(state, RobustSpikeState):
                return spike_values(rule, state, seen)
        return {}

    def _say(self, step: int, name: str, finding: Finding, seen: Vitals) -> None:
        self._voices[name], said = self._voices.get(name, Voice()).hear(step, finding.level, together=NEAR_STEPS)
        if said:
            self._beat.line(
                "spike.watch",
                step=step,
                detector=name,
                kind=str(finding.kind),
                severity=finding.severity if math.isfinite(finding.severity) else str(finding.severity),
                reason=finding.reason,
                repeated=said == "repeated",
                layers=self._layers(),
                batch=seen.batch,
                samples=self._samples(step),
            )

    def _samples(self, step: int) -> list[int]:
        """First and last position of the step's global batch in the data order."""
        positions = self._session.order.positions(step, self._session.config.train.global_batch)
        return [int(positions[0]), int(positions[-1])]

    def _note_slowness(self, step: int) -> None:
        slow = self.slowness
        if slow.stalled_s:
            self._beat.line(
                "rank.stalled", step=step, rank=slow.stalled_rank, ratio=slow.stalled_ratio, seconds=slow.stalled_s
            )
        if slow.straggler and step - self._slow_said >= _SLOW_AGAIN_STEPS:
            self._slow_said = step
            self._beat.line("rank.slow", step=step, rank=slow.rank, ratio=slow.ratio)

    def _layers(self) -> str:
        names = self._session.engine.groups.names
        return ", ".join(f"{names[index]} {ratio:.1f} x" for index, ratio in self.verdict.layers)

    def _parameter(self, index: int) -> str:
        return self._session.engine.pieces[index].name if index >= 0 else ""


def _bad(seen: Vitals) -> bool:
    """Whether any gradient, loss, weight or moment of the step is not finite."""
    counted = seen.nonfinite_gradients + seen.nonfinite_state
    return counted > 0 or not (math.isfinite(seen.loss) and math.isfinite(seen.grad_norm))


def observe(step: int, seen: Vitals, *, restart: bool) -> Observation:
    """What the detectors get to see of a step.

    Args:
        step: The step.
        seen: Its vitals.
        restart: A state was loaded just before, and nothing else says whether it is the right one.
    """
    return Observation(
        step=step,
        loss=seen.loss,
        grad_norm=seen.grad_norm,
        nonfinite_gradients=seen.nonfinite_gradients,
        nonfinite_state=seen.nonfinite_state > 0,
        tokens=seen.tokens,
        group_norms=seen.group_norms,
        rank_losses=tuple(seen.rank_losses.tolist()),
        rank_norms=tuple(seen.shard_norms.tolist()),
        restart=restart,
    )
