"""A loss that swings, more and more, with a period of its own. Pure.

Data that comes round in a fixed order swings the loss as well, harmlessly: such a swing is there from the beginning
and does not grow. So the swing must have grown against the least that was seen, and its period may be none of those
that the caller knows from the order of the data. A loss curve alone proves no cause: this is a watch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import Values, median, push

SHORTEST = 4  # rows; a shorter period is noise
_MEMORY = 16  # swings of past judgements
_REPEATS = 0.6  # the second period must correlate by this share of the first


@dataclass(frozen=True, slots=True)
class OscillationState:
    """The last losses, rows since the last judgement, and the swings found before (in nats; 0: no period was found)."""

    losses: Values = ()
    rows: int = 0
    swings: Values = ()


@dataclass(frozen=True)
class Oscillation(Rule[OscillationState]):
    """Autocorrelation peak of the detrended loss, with a swing that has grown.

    It judges once in `every` rows, so it is seldom the first to speak.
    """

    state_type: ClassVar[type[object]] = OscillationState
    name: ClassVar[str] = "oscillation"
    kind: ClassVar[Kind] = Kind.OSCILLATION
    level: ClassVar[Level] = Level.WATCH
    unit: ClassVar[str] = "nats of swing"
    source: ClassVar[str] = "Stormsail"

    correlation: float = limit(0.5, "correlation", "least autocorrelation at the period")
    swing: float = limit(0.02, "of the level", "least swing (standard deviation of the periodic part)")
    growth: float = limit(2.0, "x least swing", "least growth against the least of the judgements before")
    window: int = count(256, "rows", "rows that are judged together")
    every: int = count(64, "rows", "rows between two judgements")
    data_period: int = count(0, "steps", "period of the data's own order, left out with its multiples; 0: none known")

    def _observe(self, state: OscillationState, row: Row) -> tuple[OscillationState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        losses = push(state.losses, row.loss, self.window)
        rows = state.rows + 1
        if len(losses) < self.window or rows < self.every:
            return OscillationState(losses, rows, state.swings), None
        apart = _detrended(losses)
        period, correlation = _peak(apart)
        swing = math.sqrt(max(correlation, 0.0) * sum(map(mul, apart, apart)) / len(apart))
        after = OscillationState(losses, 0, push(state.swings, swing, _MEMORY))
        level = abs(median(losses))
        if correlation < self.correlation or swing < self.swing * level or len(state.swings) < 2:  # noqa: PLR2004
            return after, None
        # No period found is no swing of 0: among many that were found it is a gap, and alone it says "less than matters".
        found = [past for past in state.swings if past > 0.0]
        known = min(found) if 2 * len(found) >= len(state.swings) else 0.0
        least = max(known, self.swing * level / self.growth)
        if swing < self.growth * least or self._from_data(period * row.stride):
            return after, None
        return after, self.say(
            swing,
            f"loss swings with a period of {period * row.stride} steps (correlation {correlation:.2f}), "
            f"by {swing:.3f} nat, from {least:.3f} nat or less before",
        )

    def _from_data(self, period: int) -> bool:
        known = self.data_period
        return known > 0 and abs(period - max(round(period / known), 1) * known) <= 1


def _detrended(losses: Values) -> list[float]:
    """The losses without their straight line, extremes cut, so that one outlier makes no period."""
    size = len(losses)
    centre = (size - 1) / 2.0
    middle = sum(losses) / size
    slope = sum((index - centre) * loss for index, loss in enumerate(losses)) / (size * (size * size - 1) / 12.0)
    apart = [loss - middle - slope * (index - centre) for index, loss in enumerate(losses)]
    cut = 4.0 * median([abs(value) for value in apart])
    return [max(-cut, min(cut, value)) for value in apart]


def _peak(apart: list[float]) -> tuple[int, float]:
    """The period in rows with the highest autocorrelation that comes again at twice the period; (0, 0) if none."""
    size = len(apart)
    power = sum(map(mul, apart, apart)) / size
    if power <= 0.0:
        return 0, 0.0
    longest = size // 3
    found = [0.0] * (2 * longest + 1)
    for lag in range(SHORTEST - 1, len(found)):
        found[lag] = sum(map(mul, apart, apart[lag:])) / (size - lag) / power
    best = (0, 0.0)
    for lag in range(SHORTEST, longest):
        is_peak = found[lag] > found[lag - 1] and found[lag] >= found[lag + 1]
        if is_peak and found[lag] > best[1] and found[2 * lag] > _REPEATS * found[lag]:
            best = (lag, found[lag])
    return best
