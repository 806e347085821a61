"""A plateau that jumps: from one row to the next the loss moves to a higher level, and stays there. Pure.

The median of the last rows is compared with the median of the rows before, by the standard error that the scatter
allows. Single outliers do not move a median; a periodic order of the data moves it by less than the limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import MAD_TO_SIGMA, Values, median, push

_MEDIAN_LOSS = 1.2533  # a median's standard error over that of a mean
_SCATTER_FLOOR = 0.004  # of the level


@dataclass(frozen=True, slots=True)
class LevelShiftState:
    """The last losses, oldest first, in nats."""

    losses: Values = ()


@dataclass(frozen=True)
class LevelShift(Rule[LevelShiftState]):
    """Median of the last rows far above the median of those before; a small shift is a watch."""

    state_type: ClassVar[type[object]] = LevelShiftState
    name: ClassVar[str] = "level-shift"
    kind: ClassVar[Kind] = Kind.LEVEL_SHIFT
    unit: ClassVar[str] = "nats above the level before"
    source: ClassVar[str] = "Stormsail"

    rise: float = limit(0.3, "nats", "a shift beyond this is an incident")
    watch_rise: float = limit(0.15, "nats", "a shift beyond this is a watch")
    z: float = limit(7.0, "standard errors", "least shift against the scatter")
    after: int = count(20, "rows", "rows of the new level; 3 where rows are ten or more steps apart")
    before: int = count(60, "rows", "rows of the old level; 30 where rows are ten or more steps apart")

    def _observe(self, state: LevelShiftState, row: Row) -> tuple[LevelShiftState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        losses = push(state.losses, row.loss, self.before + self.after)
        learned = LevelShiftState(losses)
        coarse = row.stride >= 10  # noqa: PLR2004 - steps per row
        recent = min(self.after, 3) if coarse else self.after
        old, new = losses[:-recent], losses[-recent:]
        if coarse:
            old = old[-self.before // 2 :]
        if len(old) < self.before // 2:
            return learned, None
        level = median(old)
        rise = median(new) - level
        if rise < self.watch_rise:
            return learned, None
        scatter = max(_scatter(old), _SCATTER_FLOOR * abs(level))
        z = rise / (_MEDIAN_LOSS * scatter * math.sqrt(1.0 / recent + 1.0 / len(old)))
        if z < self.z:
            return learned, None
        return learned, self.say(
            rise,
            f"loss moved up by {rise:.2f} nat and stayed: median {level:.3f} before, {level + rise:.3f} over the last "
            f"{recent} rows (z {z:.1f})",
            Level.INCIDENT if rise > self.rise else Level.WATCH,
            onset=max(0, row.step - (recent - 1) * row.stride),
        )


def _scatter(losses: Values) -> float:
    """Standard deviation from the differences of neighbours, so that a slope does not widen it."""
    return MAD_TO_SIGMA * median([abs(after - before) for before, after in pairwise(losses)]) / math.sqrt(2.0)
