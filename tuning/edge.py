"""The largest stable learning rate, and where it lies at another width: a fit in log width; pure.

Under mu-parametrisation the edge should not move with the width. It does a little, and the drift is what the fit is for.
What is known of an edge is the step of the grid that it lies in, so a drift is told only as far as those steps demand it:
a slope through points of the grid would take their coarseness for a drift, and carry it on to the target's width.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from stormsail.tuning.objective import Measured, failed

SAFETY = 0.5
"""Share of the extrapolated edge that a learning rate handed over may reach at most."""

LEAST_FOR_SLOPE = 3
"""Widths that a slope rests on at least: edges are points of the grid, and through two of them it could be any of three."""

_DIGITS = 9  # closer than this, two lines are as good


@dataclass(frozen=True, slots=True)
class Edge:
    """Where one proxy's stable band ends.

    Attributes:
        lr: Largest learning rate up to which all trials were stable, or None if not even the smallest was.
        unstable: The one after it, with which a trial was not; None if the grid ends before.
    """

    lr: float | None
    unstable: float | None

    @property
    def open_end(self) -> bool:
        """Whether the largest learning rate of the grid was still stable, so that the edge lies beyond it."""
        return self.lr is not None and self.unstable is None

    @property
    def label(self) -> str:
        """In words: the last rate that was stable and the first that was not."""
        if self.lr is None:
            return "below the grid" if self.unstable is None else f"below the grid ({self.unstable:g} failed)"
        return (
            f"{self.lr:g} or beyond: the grid ends there"
            if self.unstable is None
            else f"{self.lr:g} ({self.unstable:g} failed)"
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through (log width, log learning rate).

    Attributes:
        slope: Exponent of the width.
        intercept: Natural logarithm of the learning rate at width 1.
    """

    slope: float
    intercept: float

    def at(self, width: float) -> float:
        """The learning rate at a width."""
        return math.exp(self.intercept + self.slope * math.log(width))


@dataclass(frozen=True, slots=True)
class EdgeFit:
    """How the edge moves with the width.

    Attributes:
        likely: The flattest line that explains what was seen: what is expected.
        cautious: Least squares through the largest stable rates: as steep as they look. What is handed over stays below both.
        widths: How many widths they rest on; of fewer than three, both are level and at the smallest edge.
    """

    likely: Line
    cautious: Line
    widths: int

    @property
    def tells_drift(self) -> bool:
        """Whether enough widths are known for a slope."""
        return self.widths >= LEAST_FOR_SLOPE

    def expected(self, width: float) -> float:
        """The edge that is expected at a width."""
        return self.likely.at(width)

    def safe(self, width: float) -> float:
        """The lower one of the two lines at a width."""
        return min(self.likely.at(width), self.cautious.at(width))


def stable_edge(outcomes: Mapping[float, Sequence[bool]]) -> Edge:
    """The end of the stable band.

    Args:
        outcomes: For each learning rate whether each of its trials was stable.
    """
    last = None
    for lr in sorted(outcomes):
        if not outcomes[lr] or not all(outcomes[lr]):
            return Edge(last, lr)
        last = lr
    return Edge(last, None)


def edges_of(found: Iterable[Measured], best: Mapping[str, float]) -> dict[str, Edge]:
    """The edge of each proxy, from all of its trials with these settings.

    Below the learning rate that learned most, a trial that ends far above the best was slow, and not unstable.
    """
    by_proxy: defaultdict[str, list[Measured]] = defaultdict(list)
    for one in found:
        by_proxy[one.trial.proxy].append(one)
    edges = {}
    for proxy, mine in by_proxy.items():
        ended = [
            (one.figures.final_loss, one.trial.lr)
            for one in mine
            if one.figures.final_loss is not None and not one.figures.diverged
        ]
        fastest = min(ended)[1] if ended else 0.0
        outcomes: defaultdict[float, list[bool]] = defaultdict(list)
        for one in mine:
            slow = one.trial.lr < fastest and not one.figures.diverged and one.figures.final_loss is not None
            outcomes[one.trial.lr].append(slow or not failed(one, best))
        edges[proxy] = stable_edge(outcomes)
    return edges


def fit_edges(edges: Iterable[tuple[float, Edge]]) -> EdgeFit | None:
    """Lines through the grid steps in which the edges lie; None where no edge is known.

    The likely line is the flattest of those that run through all the steps, or else miss them by least; where several are
    as flat, the lowest. It cannot be the limit of what is handed over: of a falling edge it is the most hopeful
    explanation. Edges below the grid and beyond it are known from one side only, and are left out.

    Args:
        edges: (width, edge), widths above 0. Several at one width count each.
    """
    steps = [
        _Step(math.log(width), math.log(edge.lr), math.log(edge.unstable))
        for width, edge in edges
        if edge.lr is not None and edge.unstable is not None
    ]
    widths = len({step.width for step in steps})
    if not steps:
        return None
    if widths < LEAST_FOR_SLOPE:
        level = Line(0.0, min(step.low for step in steps))
        return EdgeFit(level, level, widths)
    _, _, intercept, slope = min(_lines(steps))
    return EdgeFit(Line(slope, intercept), _least_squares([(step.width, step.low) for step in steps]), widths)


def _least_squares(points: Sequence[tuple[float, float]]) -> Line:
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return Line(slope, mean_y - slope * mean_x)


@dataclass(frozen=True, slots=True)
class _Step:
    """The grid step in which the edge at a width lies; all logarithms."""

    width: float
    low: float
    high: float

    def missed_by(self, log_lr: float) -> float:
        return max(0.0, self.low - log_lr, log_lr - self.high)


def _lines(steps: Sequence[_Step]) -> Iterator[tuple[float, float, float, float]]:
    """(by how much it misses, steepness, intercept, slope) of each line that can be the best.

    Both the miss and the steepness are piecewise linear, so a best line is level or runs through two ends of steps.
    """
    ends = [(step.width, end) for step in steps for end in (step.low, step.high)]
    slopes = {0.0} | {(y - v) / (x - u) for (x, y), (u, v) in combinations(ends, 2) if x != u}
    for slope in slopes:
        for intercept in {y - slope * x for x, y in ends}:
            miss = math.fsum(step.missed_by(intercept + slope * step.width) for step in steps)
            yield round(miss, _DIGITS), round(abs(slope), _DIGITS), intercept, slope


def grid_steps_apart(one: float, other: float, grid: Sequence[float]) -> int:
    """How many steps of the grid two learning rates are apart, each counted as the largest point that it reaches.

    Beyond its ends the grid goes on as it ended.

    Args:
        one: A learning rate.
        other: Another one.
        grid: At least two, in any order.
    """
    logs = sorted(math.log(lr) for lr in grid)
    return abs(_point(math.log(one), logs) - _point(math.log(other), logs))


def _point(log_lr: float, logs: Sequence[float]) -> int:
    above = min(max(bisect_left(logs, log_lr), 1), len(logs) - 1)
    low, high = logs[above - 1], logs[above]
    return above - 1 + math.floor((log_lr - low) / (high - low) + 10.0**-_DIGITS)
