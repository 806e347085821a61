"""Monitored items about the gradient; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import Row, each, field, named, number, ratio_to_median, rolling, share_of

_NORMS = "norm."
# Rounding apart, a factor of 1.
_UNCLIPPED = 0.999


def _ema(values: Sequence[float]) -> float:
    """Exponential mean, 0.99 a step, over what is finite of what is looked at; the newest where nothing is."""
    finite = [value for value in values if math.isfinite(value)]
    mean = finite[0] if finite else values[-1]
    for value in finite[1:]:
        mean = 0.99 * mean + 0.01 * value
    return mean


def _largest_layer(row: Row) -> float | None:
    norms = [
        value for name, value in row.get("values", {}).items() if name.startswith(_NORMS) and name != "norm.zero_share"
    ]
    total = math.sqrt(sum(value * value for value in norms))
    return max(norms) / total if norms and total else None


def _clip_factor(row: Row) -> float | None:
    """What clipping left of the gradient; a step without an update has none."""
    before, after = number(row["grad_norm"]), number(row["clipped_norm"])
    return after / before if before and after is not None and row["outcome"] == "applied" else None


GRADIENT = (
    Item(
        "gradient.norm",
        "norm before clipping",
        "rows: grad_norm",
        "global gradient norm",
        Limits(100.0, 1000.0),
        "see gradient.ratio; lower the clip limit or the learning rate",
        "gradient-explosion",
        each(field("grad_norm")),
    ),
    Item(
        "gradient.ratio",
        "x median of 256",
        "rows: grad_norm",
        "the newest norm against those before",
        Limits(3.0, 10.0),
        "if it lasts, the ladder rolls back with LR x 0.8",
        "gradient-explosion",
        ratio_to_median(field("grad_norm")),
    ),
    Item(
        "gradient.norm_ema",
        "norm before clipping",
        "rows: grad_norm",
        "exponential mean of the norm, 0.99 a step",
        Limits(50.0, 500.0),
        "a level that rises is drift: see loss.drift",
        "gradient-explosion",
        rolling(field("grad_norm"), _ema, window=600, least=1),
    ),
    Item(
        "gradient.norm_max",
        "norm before clipping",
        "rows: grad_norm",
        "largest norm of the last 100 steps",
        Limits(200.0, 1000.0),
        "find the step and its batch in the rows",
        "gradient-explosion",
        rolling(field("grad_norm"), max, window=100, least=1),
    ),
    Item(
        "gradient.norm_min",
        "norm before clipping",
        "rows: grad_norm",
        "smallest norm of the last 100 steps",
        Limits(1e-5, 1e-8, below=True),
        "gradients vanish: a dead layer, or a loss that is cut off",
        "dead-layer",
        rolling(field("grad_norm"), min, window=100, least=1),
    ),
    Item(
        "gradient.clipped_share",
        "share of 100 steps",
        "rows: grad_norm, clipped_norm",
        "updates that were clipped",
        Limits(0.5, 0.98),
        "the clip limit sets the step size: raise it, or lower the learning rate",
        "gradient-explosion",
        share_of(lambda row: (_clip_factor(row) or 1.0) < _UNCLIPPED),
    ),
    Item(
        "gradient.clip_factor",
        "factor",
        "rows: grad_norm, clipped_norm",
        "what clipping left of the last gradient",
        Limits(0.1, 0.01, below=True),
        "as for gradient.ratio",
        "gradient-explosion",
        each(_clip_factor),
    ),
    Item(
        "gradient.nonfinite",
        "elements",
        "rows: values nonfinite.gradients",
        "non-finite gradient values on all ranks",
        Limits(1.0, 1000.0),
        "never applied; three in a row open an incident: read its rank and layer",
        "non-finite",
        each(named("nonfinite.gradients")),
    ),
    Item(
        "gradient.zero_share",
        "share of elements",
        "rows: values norm.zero_share",
        "gradient values that are exactly 0",
        Limits(0.5, 0.9),
        "underflow or dead units: look at precision and at the layer",
        "dead-layer",
        each(named("norm.zero_share")),
    ),
    Item(
        "gradient.largest_layer",
        "share of the norm",
        "rows: values norm.*",
        "what the layer group in front has of the whole norm",
        Limits(0.95, 0.999),
        "one layer explodes: see which, in the row",
        "gradient-explosion",
        each(_largest_layer),
    ),
)
