"""A spike so large that few rows are enough. Pure.

The default spike rule waits for a third and a fourth row. Where the norm and the loss leave their range together by
an order of magnitude, twice, no data outlier explains it and waiting only costs steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import Values, median, median_and_scatter, push

_SCATTER_FLOOR = 0.004  # of the level: healthy runs scatter by about this much late in training


@dataclass(frozen=True, slots=True)
class ExplosionState:
    """What was normal, and what the last row was.

    Attributes:
        losses: The last ordinary losses, in nats.
        log_norms: The last ordinary logarithms of the norm.
        extreme: Rows in a row that were out of range.
        high_loss: Whether the loss was, in the last of them.
    """

    losses: Values = ()
    log_norms: Values = ()
    extreme: int = 0
    high_loss: bool = False


@dataclass(frozen=True)
class Explosion(Rule[ExplosionState]):
    """Two rows out of range, the second with the loss far up: with the norm, or in the loss twice."""

    state_type: ClassVar[type[object]] = ExplosionState
    name: ClassVar[str] = "explosion"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "nats above the level"
    source: ClassVar[str] = "Stormsail"

    z: float = limit(12.0, "robust sigma", "a loss beyond this is high")
    norm_ratio: float = limit(10.0, "x median norm", "a norm beyond this is out of range")
    rise: float = limit(0.7, "nats", "least rise of the loss beside such a norm")
    loss_ratio: float = limit(1.5, "x level", "a loss beyond this, twice, needs no norm")
    coarse_rise: float = limit(0.3, "nats", "the same for rows ten or more steps apart")
    rows: int = count(2, "rows in a row", "rows out of range that are an incident")
    window: int = count(64, "rows", "ordinary rows that say what is normal")
    least: int = count(20, "rows", "ordinary rows needed before the rule speaks")
    forget: int = count(64, "rows", "rows in a row out of range that become the new normal")

    def _observe(self, state: ExplosionState, row: Row) -> tuple[ExplosionState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        if len(state.losses) < self.least:
            return self._learned(state, row), None
        level = median(state.losses)
        high_norm = self._high_norm(state, row)
        high_loss = self._high_loss(state, row, level, high_norm=high_norm)
        if not (high_loss or high_norm):
            return self._learned(state, row), None
        if state.extreme >= self.forget:
            return self._learned(ExplosionState(), row), None
        after = ExplosionState(state.losses, state.log_norms, state.extreme + 1, high_loss)
        if not (after.extreme >= self.rows and high_loss and (high_norm or state.high_loss)):
            return after, None
        times = math.exp(min((row.log_norm or 0.0) - median(state.log_norms), 600.0)) if high_norm else 0.0
        beside = f", gradient norm {times:.0f} x its median" if high_norm else ""
        rise = row.loss - level
        return after, self.say(
            rise,
            f"loss {row.loss:.3f}, {rise:.2f} nat above its level{beside}; {after.extreme} rows out of range",
            onset=row.step - state.extreme * row.stride,
        )

    def _high_norm(self, state: ExplosionState, row: Row) -> bool:
        log_norm = row.log_norm
        if log_norm is None or len(state.log_norms) < self.least:
            return False
        return log_norm - median(state.log_norms) > math.log(self.norm_ratio)

    def _high_loss(self, state: ExplosionState, row: Row, level: float, *, high_norm: bool) -> bool:
        rise = row.loss - level
        needed = self.coarse_rise if row.stride >= 10 else (self.loss_ratio - 1.0) * level  # noqa: PLR2004 - rows
        if rise < (min(self.rise, needed) if high_norm else needed):
            return False
        _, scatter = median_and_scatter(state.losses)
        return rise > self.z * max(scatter, _SCATTER_FLOOR * abs(level))

    def _learned(self, state: ExplosionState, row: Row) -> ExplosionState:
        log_norm = row.log_norm
        norms = state.log_norms if log_norm is None else push(state.log_norms, log_norm, self.window)
        return ExplosionState(push(state.losses, row.loss, self.window), norms)
