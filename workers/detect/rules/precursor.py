"""A gradient norm that leaves its range, which often leads the loss by a few steps. Pure.

In log space, since norms scatter by factors: the healthy standard deviation of the log norm is 0.08 to 0.10. Isolated
blips come up to 4 times in 10,000 healthy steps, so this is a watch: good for a clip or a skip, never for a rollback.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import MAD_TO_SIGMA, Values, median, push

_SCATTER_FLOOR = 0.1


@dataclass(frozen=True, slots=True)
class PrecursorState:
    """Accepted log norms, oldest first, and how many rows in a row were not accepted."""

    log_norms: Values = ()
    flagged: int = 0


@dataclass(frozen=True)
class NormPrecursor(Rule[PrecursorState]):
    """Log norm far above its median. One that stays is a new level, and is learned after a while."""

    state_type: ClassVar[type[object]] = PrecursorState
    name: ClassVar[str] = "norm-precursor"
    kind: ClassVar[Kind] = Kind.GRADIENT
    level: ClassVar[Level] = Level.WATCH
    unit: ClassVar[str] = "x median norm"
    source: ClassVar[str] = "Stormsail"

    z: float = limit(6.0, "robust sigma of the log norm", "a norm beyond this and the ratio is flagged")
    ratio: float = limit(3.0, "x median norm", "a norm beyond this and the score is flagged")
    window: int = count(128, "rows", "accepted rows that say what is normal")
    least: int = count(20, "rows", "accepted rows needed before the rule speaks")
    forget: int = count(20, "rows in a row", "flags that become the new level")

    def _observe(self, state: PrecursorState, row: Row) -> tuple[PrecursorState, Finding | None]:
        log_norm = row.log_norm
        if log_norm is None:
            return state, None
        accepted = PrecursorState(push(state.log_norms, log_norm, self.window))
        if len(state.log_norms) < self.least:
            return accepted, None
        middle = median(state.log_norms)
        apart = log_norm - middle
        if apart <= math.log(self.ratio):
            return accepted, None
        scatter = MAD_TO_SIGMA * median([abs(value - middle) for value in state.log_norms])
        z = apart / max(scatter, _SCATTER_FLOOR)
        if z <= self.z:
            return accepted, None
        after = PrecursorState(state.log_norms, state.flagged + 1)
        if after.flagged > self.forget:
            after = PrecursorState((log_norm,))
        times = math.exp(min(apart, 600.0))
        return after, self.say(
            times,
            f"gradient norm {row.grad_norm:.4g} is {times:.1f} x its median (limit {self.ratio:g}), z {z:.1f}",
            normal=math.exp(middle),
        )
