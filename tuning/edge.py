"""The largest stable learning rate, and where it lies at another width: a fit in log width; pure.

Under mu-parametrisation the edge should not move with the width. It does a little, and the drift is what the fit is for.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stormsail.tuning.objective import Measured, failed

SAFETY = 0.5
"""Share of the extrapolated edge that a learning rate handed over may reach at most."""

LEAST_FOR_SLOPE = 3
"""Widths that a slope rests on at least: edges are points of the grid, and through two of them it could be any of three."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Where one proxy's stable band ends.

    Attributes:
        lr: Largest learning rate up to which all trials were stable, or None if not even the smallest was.
        open_end: Whether the largest learning rate of the grid was still stable, so that the edge lies beyond it.
    """

    lr: float | None
    open_end: bool


@dataclass(frozen=True, slots=True)
class EdgeFit:
    """A straight line through (log width, log edge).

    Attributes:
        slope: Exponent of the width; 0 where fewer than three widths are known.
        intercept: Natural logarithm of the edge at width 1; without a slope that of the smallest edge.
        widths: How many widths it rests on.
    """

    slope: float
    intercept: float
    widths: int

    def at(self, width: float) -> float:
        """The edge that is expected at a width."""
        return math.exp(self.intercept + self.slope * math.log(width))


def stable_edge(outcomes: Mapping[float, Sequence[bool]]) -> Edge:
    """The end of the stable band.

    Args:
        outcomes: For each learning rate whether each of its trials was stable.
    """
    last = None
    for lr in sorted(outcomes):
        if not outcomes[lr] or not all(outcomes[lr]):
            return Edge(last, open_end=False)
        last = lr
    return Edge(last, open_end=last is not None)


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


def fit_edges(points: Sequence[tuple[float, float]]) -> EdgeFit | None:
    """Fit edges over widths by least squares in logarithms; of fewer than three widths, take the smallest edge.

    Args:
        points: (width, edge), both above 0. Several at one width count each.
    """
    if not points:
        return None
    logs = [(math.log(width), math.log(edge)) for width, edge in points]
    mean_x = math.fsum(x for x, _ in logs) / len(logs)
    mean_y = math.fsum(y for _, y in logs) / len(logs)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in logs)
    widths = len({width for width, _ in points})
    if widths < LEAST_FOR_SLOPE:
        return EdgeFit(0.0, min(y for _, y in logs), widths)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in logs) / spread
    return EdgeFit(slope, mean_y - slope * mean_x, widths)


def grid_steps_apart(one: float, other: float, grid: Sequence[float]) -> int:
    """How many steps of the grid lie between two learning rates, rounded; beyond its ends the grid goes on as it ended.

    Args:
        one: A learning rate.
        other: Another one.
        grid: At least two, in any order.
    """
    logs = sorted(math.log(lr) for lr in grid)
    return round(abs(_place(math.log(one), logs) - _place(math.log(other), logs)))


def _place(log_lr: float, logs: Sequence[float]) -> float:
    """Where a learning rate stands among the points, in steps from the first one."""
    above = min(max(bisect_left(logs, log_lr), 1), len(logs) - 1)
    low, high = logs[above - 1], logs[above]
    return above - 1 + (log_lr - low) / (high - low)
