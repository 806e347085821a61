"""The default spike rule over the rows of a log: what a live run uses, adapted to gaps and to what follows. Pure.

The judgement is that of `detect.spike`, unchanged. Added around it is what only a log needs: rows that lie ten or
more steps apart need fewer flags, and a run that nobody repaired goes on, so after a while its new level is the
normal one and the next trouble is seen again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

from stormsail.platform.config.model import DetectSection
from stormsail.workers.detect.baseline import Baseline
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import Values, push
from stormsail.workers.detect.spike import Reading, SpikeState, advance, is_incident, read

_RECENT = 32  # raw rows from which a baseline is begun anew


@dataclass(frozen=True, slots=True)
class RobustSpikeState:
    """The rule's own state, and the last raw rows.

    Attributes:
        spike: State of the shared rule.
        losses: The last losses, flagged ones too, in nats.
        log_norms: The last logarithms of the norm.
    """

    spike: SpikeState = field(default_factory=SpikeState)
    losses: Values = ()
    log_norms: Values = ()


@dataclass(frozen=True)
class RobustSpike(Rule[RobustSpikeState]):
    """Robust residual of loss and log norm against what was accepted, with persistence and a grace to heal.

    A flagged loss is a watch. Its cost is delay: a mild spike gets `grace_steps` to return before it is an incident.
    """

    state_type: ClassVar[type[object]] = RobustSpikeState
    name: ClassVar[str] = "spike"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "robust sigma"
    source: ClassVar[str] = "Stormsail, the rule of a live run"

    z: float = limit(6.0, "robust sigma", "a row beyond this is flagged")
    severe_z: float = limit(12.0, "robust sigma", "a loss beyond this gets no grace")
    norm_ratio: float = limit(10.0, "x median norm", "a norm beyond this gets no grace")
    grace_steps: int = count(20, "steps", "what a persistent, mild spike gets to heal by itself")
    least_rise: float = limit(0.1, "nats", "a mild spike below this is no incident")
    coarse_stride: int = count(10, "steps per row", "from here on two flags of three rows are persistent")
    rebase_steps: int = count(200, "steps", "a spike that lasts longer is the new normal")

    def policy(self, stride: int) -> DetectSection:
        """The thresholds as the shared rule takes them, for rows `stride` steps apart."""
        coarse = stride >= self.coarse_stride
        grace = min(self.grace_steps, stride) if coarse else self.grace_steps
        return _policy(self.z, self.severe_z, self.norm_ratio, grace, coarse)

    def _observe(self, state: RobustSpikeState, row: Row) -> tuple[RobustSpikeState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        policy = self.policy(row.stride)
        log_norm = row.log_norm
        norm = math.exp(state.spike.norm.level if log_norm is None else log_norm)  # unknown: as it was
        reading = read(state.spike, row.step, row.loss, norm, policy)
        spike = advance(state.spike, reading, policy)
        after = RobustSpikeState(
            spike, push(state.losses, row.loss, _RECENT), push(state.log_norms, reading.log_norm, _RECENT)
        )
        if not reading.flagged:
            return after, None
        finding = self._finding(state.spike, spike, reading, policy)
        if row.step - spike.onset >= max(self.rebase_steps, _RECENT * row.stride):
            after = replace(after, spike=_begun_anew(after, policy))
        return after, finding

    def _finding(
        self, before: SpikeState, spike: SpikeState, reading: Reading, policy: DetectSection
    ) -> Finding | None:
        rise = reading.loss - before.loss.level
        serious = reading.severe or any(spike.severe) or rise >= self.least_rise
        if is_incident(spike, reading, policy) and serious:
            return self.say(spike.peak_z, _reason(before, reading, spike, policy))
        if reading.loss_flagged:  # a norm alone is the precursor's to report
            return self.say(reading.loss_z, _reason(before, reading, spike, policy), Level.WATCH)
        return None


def _begun_anew(state: RobustSpikeState, policy: DetectSection) -> SpikeState:
    loss, norm = Baseline(), Baseline()
    for value in state.losses:
        loss = loss.accept(value, policy.window_steps)
    for value in state.log_norms:
        norm = norm.accept(value, policy.window_steps)
    return SpikeState(loss=loss, norm=norm, accepted=max(len(state.losses), policy.warmup_steps))


@lru_cache(maxsize=32)
def _policy(z: float, severe_z: float, norm_ratio: float, grace: int, coarse: bool) -> DetectSection:  # noqa: FBT001 - a cache key
    persist = (2, 3) if coarse else (3, 5)
    return DetectSection.model_validate(
        {"z": z, "severe_z": severe_z, "norm_ratio": norm_ratio, "grace_steps": grace, "persist_of": persist}
    )


def _reason(before: SpikeState, reading: Reading, spike: SpikeState, policy: DetectSection) -> str:
    parts = []
    if reading.loss_flagged:
        rise = reading.loss - before.loss.level
        parts.append(
            f"loss {reading.loss:.3f}, {rise:.2f} nat above its level (z {reading.loss_z:.1f}, limit {policy.z:g})"
        )
    if reading.norm_flagged:
        parts.append(f"gradient norm {reading.norm_ratio:.1f} x its median")
    return f"{', '.join(parts)}; {sum(spike.flags)} of the last {len(spike.flags)} rows flagged since {spike.onset}"
