"""The largest stable learning rate, and where it lies at another width: a fit in log width; pure.

Under mu-parametrisation the edge should not move with the width. It does a little, and the drift is what the fit is for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stormsail.tuning.objective import Measured, failed

SAFETY = 0.5
"""Share of the extrapolated edge that a learning rate handed over may reach at most."""

_LEAST_FOR_SLOPE = 2


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
        slope: Exponent of the width; 0 where fewer than two widths are known.
        intercept: Natural logarithm of the edge at width 1.
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
    """The edge of each proxy, from all of its trials with these settings."""
    outcomes: defaultdict[str, defaultdict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        outcomes[one.trial.proxy][one.trial.lr].append(not failed(one, best))
    return {proxy: stable_edge(by_lr) for proxy, by_lr in outcomes.items()}


def fit_edges(points: Sequence[tuple[float, float]]) -> EdgeFit | None:
    """Fit edges over widths by least squares in logarithms.

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
    if widths < _LEAST_FOR_SLOPE:
        return EdgeFit(0.0, mean_y, widths)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in logs) / spread
    return EdgeFit(slope, mean_y - slope * mean_x, widths)


def grid_steps_apart(one: float, other: float, grid: Sequence[float]) -> int:
    """How many steps of the grid lie between two learning rates, each taken to its nearest point in log scale."""
    points = sorted(grid)
    nearest = [min(range(len(points)), key=lambda i: abs(math.log(points[i] / lr))) for lr in (one, other)]
    return abs(nearest[0] - nearest[1])
