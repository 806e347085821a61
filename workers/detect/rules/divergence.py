"""Slow divergence: a loss that climbs away from where it was, too gently for any single step to stand out. Pure.

A fast average is compared with its own minimum of the last 1,500 steps. Early descent only moves that minimum down,
and an outlier or two never reaches the average, which is fed with a median. The margin grows with the scatter of the
average, so that a noisy loss (one rank's) needs a larger rise, and with the level, since a loss of 10 nats moves more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import Values, median, push

_BLOCKS = 30  # the minimum is kept per block, so that old ones can be forgotten
_ALPHA_SCATTER = 0.02
_MEDIAN_LOSS = 1.2533  # an average of medians scatters more than one of values, by this
_DIFFERENCE_TO_SIGMA = 1.2533 / math.sqrt(2.0)  # mean absolute difference of neighbours to standard deviation


@dataclass(frozen=True, slots=True)
class DivergenceState:
    """The fast average and its past.

    Attributes:
        recent: The last losses, whose median feeds the average, in nats.
        fast: The fast average; None before the first row.
        scatter: Mean absolute difference of neighbouring losses, in nats.
        minima: Lowest average of each past block of rows, oldest first.
        block: Rows in the present block.
        lowest: Lowest average of the present block; None before the first row.
        rows: Rows seen, up to the number that the rule needs.
        above: Rows in a row above the margin.
    """

    recent: Values = ()
    fast: float | None = None
    scatter: float = 0.0
    minima: Values = ()
    block: int = 0
    lowest: float | None = None
    rows: int = 0
    above: int = 0


@dataclass(frozen=True)
class SlowDivergence(Rule[DivergenceState]):
    """Fast average above its long minimum by a margin; half the margin is a watch."""

    state_type: ClassVar[type[object]] = DivergenceState
    name: ClassVar[str] = "slow-divergence"
    kind: ClassVar[Kind] = Kind.DIVERGENCE
    unit: ClassVar[str] = "nats above the minimum"
    source: ClassVar[str] = "Stormsail"

    margin: float = limit(0.25, "nats", "least rise that is an incident")
    coarse_margin: float = limit(0.4, "nats", "the same where rows are further apart than that time constant")
    share: float = limit(0.05, "of the level", "least rise as a share of the minimum")
    sigmas: float = limit(12.0, "sigma of the average", "least rise against the noise")
    fast_steps: int = count(30, "steps", "time constant of the fast average")
    memory_steps: int = count(1500, "steps", "how far back the minimum reaches")
    memory_rows: int = count(300, "rows", "how far back it reaches at least, where rows lie far apart")
    least: int = count(60, "rows", "rows before the rule speaks")
    stay: int = count(5, "rows in a row", "how long the rise must stay; 1 where rows are ten or more steps apart")

    def _observe(self, state: DivergenceState, row: Row) -> tuple[DivergenceState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        learned = self._learned(state, row)
        fast = learned.fast or 0.0
        floor = min((*learned.minima, fast if learned.lowest is None else learned.lowest))
        rise = fast - floor
        needed = self._margin(learned, row, floor)
        # The average of a spike that has healed is still high; the loss itself is not.
        high = rise > needed / 2.0 and median(learned.recent) - floor > needed / 2.0
        above = state.above + 1 if high else 0
        after = replace(learned, above=above)
        coarse = row.stride >= 10  # noqa: PLR2004 - steps per row
        if state.rows < self.least or above < (1 if coarse else self.stay):
            return after, None
        level = Level.INCIDENT if rise > needed else Level.WATCH
        return after, self.say(
            rise,
            f"average loss {fast:.3f} is {rise:.2f} nat above its lowest of late, {floor:.3f} (limit {needed:.2f})",
            level,
            onset=self._onset(learned, row, floor),
        )

    def _onset(self, state: DivergenceState, row: Row, floor: float) -> int:
        """The end of the block of rows in which the average was lowest; its beginning if that is the present one."""
        since = state.block
        if state.lowest != floor:
            for lowest in reversed(state.minima):
                if lowest == floor:
                    break
                since += math.ceil(self._block_rows(row))
        return max(0, row.step - since * row.stride)

    def _block_rows(self, row: Row) -> float:
        return max(self.memory_steps / row.stride, self.memory_rows) / _BLOCKS

    def _margin(self, state: DivergenceState, row: Row, floor: float) -> float:
        sigma = _MEDIAN_LOSS * _DIFFERENCE_TO_SIGMA * state.scatter * math.sqrt(self._alpha(row) / 2.0)
        margin = max(self.margin, self.coarse_margin) if row.stride >= self.fast_steps else self.margin
        return max(margin, self.share * abs(floor), self.sigmas * sigma)

    def _alpha(self, row: Row) -> float:
        return 1.0 - math.exp(-row.stride / self.fast_steps)

    def _learned(self, state: DivergenceState, row: Row) -> DivergenceState:
        recent = push(state.recent, row.loss, 3 if row.stride >= 10 else 5)  # noqa: PLR2004 - steps per row
        fed = median(recent)
        settling = state.rows < self.least // 2  # the first rows are averaged evenly, and are no minimum
        pace = max(self._alpha(row), 1.0 / (state.rows + 1)) if settling else self._alpha(row)
        fast = fed if state.fast is None else state.fast + pace * (fed - state.fast)
        difference = abs(row.loss - state.recent[-1]) if state.recent else 0.0
        if state.rows >= self.least:  # a jump is no scatter
            difference = min(difference, 6.0 * state.scatter)
        weight = max(_ALPHA_SCATTER, 1.0 / (state.rows + 1))
        scatter = state.scatter + weight * (difference - state.scatter)
        minima, block = state.minima, state.block + 1
        lowest = fast if settling or state.lowest is None else min(state.lowest, fast)
        if block >= self._block_rows(row):
            minima, block, lowest = push(minima, lowest, _BLOCKS), 0, fast
        return DivergenceState(
            recent, fast, scatter, minima, block, lowest, min(state.rows + 1, self.least), state.above
        )
