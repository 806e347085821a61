"""The default spike rule, over the rows of a log or the steps of a live run. Pure.

The judgement is that of `detect.spike`. Added around it: rows that lie ten or more steps apart need fewer flags, a
mild spike must be of some size, and a run that nobody repaired goes on, so after a while its new level is the normal
one and the next trouble is seen again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stormsail.workers.detect.baseline import Baseline
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import Values, push
from stormsail.workers.detect.spike import Reading, SpikeLimits, SpikeState, advance, is_incident, read

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
    source: ClassVar[str] = "Stormsail"

    z: float = limit(6.0, "robust sigma", "a row beyond this is flagged")
    severe_z: float = limit(12.0, "robust sigma", "a loss beyond this gets no grace")
    norm_ratio: float = limit(10.0, "x median norm", "a norm beyond this gets no grace")
    grace_steps: int = count(20, "steps", "what a persistent, mild spike gets to heal by itself")
    least_rise: float = limit(0.1, "nats", "a mild spike below this is no incident")
    needed: int = count(3, "rows", "flagged rows that make a spike persistent")
    of: int = count(5, "rows", "last rows among which they are counted")
    window: int = count(256, "rows", "accepted residuals that say what is normal")
    least: int = count(20, "rows", "accepted rows needed before the rule speaks")
    coarse_stride: int = count(10, "steps per row", "from here on two flags of three rows are persistent")
    rebase_steps: int = count(200, "steps", "a spike that lasts longer is the new normal")

    def limits(self, stride: int) -> SpikeLimits:
        """The thresholds as the shared rule takes them, for rows `stride` steps apart."""
        coarse = stride >= self.coarse_stride
        return SpikeLimits(
            z=self.z,
            severe_z=self.severe_z,
            norm_ratio=self.norm_ratio,
            needed=min(self.needed, 2) if coarse else self.needed,
            of=min(self.of, 3) if coarse else self.of,
            grace_steps=min(self.grace_steps, stride) if coarse else self.grace_steps,
            warmup_steps=self.least,
            window_steps=self.window,
        )

    def distance(self, state: RobustSpikeState, loss: float, grad_norm: float) -> tuple[float, float]:
        """Robust z of a loss, and a norm over its median, as the rule would see them; both must be finite."""
        reading = read(state.spike, 0, loss, grad_norm, self.limits(1))
        return reading.loss_z, reading.norm_ratio

    def _observe(self, state: RobustSpikeState, row: Row) -> tuple[RobustSpikeState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        limits = self.limits(row.stride)
        log_norm = row.log_norm
        norm = math.exp(state.spike.norm.level if log_norm is None else log_norm)  # unknown: as it was
        reading = read(state.spike, row.step, row.loss, norm, limits)
        spike = advance(state.spike, reading, limits)
        after = RobustSpikeState(
            spike, push(state.losses, row.loss, _RECENT), push(state.log_norms, reading.log_norm, _RECENT)
        )
        if not reading.flagged:
            return after, None
        finding = self._finding(state.spike, spike, reading, limits)
        if row.step - spike.onset >= max(self.rebase_steps, _RECENT * row.stride):
            after = replace(after, spike=_begun_anew(after, limits))
        return after, finding

    def _finding(self, before: SpikeState, spike: SpikeState, reading: Reading, limits: SpikeLimits) -> Finding | None:
        rise = reading.loss - before.loss.level
        serious = reading.severe or any(spike.severe) or rise >= self.least_rise
        if is_incident(spike, reading, limits) and serious:
            return self.say(spike.peak_z, _reason(before, reading, spike, limits), onset=spike.onset)
        if reading.loss_flagged:  # a norm alone is the precursor's to report
            reason = _reason(before, reading, spike, limits)
            return self.say(reading.loss_z, reason, Level.WATCH, onset=spike.onset)
        return None


def _begun_anew(state: RobustSpikeState, limits: SpikeLimits) -> SpikeState:
    loss, norm = Baseline(), Baseline()
    for value in state.losses:
        loss = loss.accept(value, limits.window_steps)
    for value in state.log_norms:
        norm = norm.accept(value, limits.window_steps)
    return SpikeState(loss=loss, norm=norm, accepted=max(len(state.losses), limits.warmup_steps))


def _reason(before: SpikeState, reading: Reading, spike: SpikeState, limits: SpikeLimits) -> str:
    parts = []
    if reading.loss_flagged:
        rise = reading.loss - before.loss.level
        parts.append(
            f"loss {reading.loss:.3f}, {rise:.2f} nat above its level (z {reading.loss_z:.1f}, limit {limits.z:g})"
        )
    if reading.norm_flagged:
        parts.append(f"gradient norm {reading.norm_ratio:.1f} x its median")
    return f"{', '.join(parts)}; {sum(spike.flags)} of the last {len(spike.flags)} rows flagged since {spike.onset}"
