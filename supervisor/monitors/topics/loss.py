"""Monitored items about the loss; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from stormsail.platform.checkpoint.evaluated import evaluated_in, lowest_so_far
from stormsail.platform.checkpoint.lines import live_refs
from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import (
    Point,
    RunView,
    each,
    field,
    named,
    ratio_to_median,
    rolling,
    share_of,
)


def _best_ratio(values: Sequence[float]) -> float:
    best = min(value for value in values if math.isfinite(value)) if any(map(math.isfinite, values)) else math.nan
    return values[-1] / best if best else 1.0


def _robust_z(values: Sequence[float]) -> float:
    """Against a running median; the scale is floored at 0.4 % of the level, as the detectors' is."""
    level = median(values[:-1])
    scale = max(1.4826 * median(abs(value - level) for value in values[:-1]), 0.004 * abs(level), 1e-12)
    return abs(values[-1] - level) / scale


def _drift(values: Sequence[float]) -> float:
    """Mean of the newest 20 above the least mean of 20 seen."""
    means = [sum(values[end - 20 : end]) / 20 for end in range(20, len(values) + 1)]
    return means[-1] - min(means)


def _scatter(values: Sequence[float]) -> float:
    level = median(values)
    return 1.4826 * median(abs(value - level) for value in values) / abs(level) if level else 0.0


def _evaluated(view: RunView) -> list[Point]:
    """Of the present line: what was rolled back is no measure; a loss that is not finite is on any."""
    live = live_refs(view.record.generations, view.record.evaluations)
    found = [(event.time_s, evaluated_in(event.data, event.step)) for event in view.of_kind("evaluation.finished")]
    times = {item.ref: time_s for time_s, item in found if item is not None and item.ref in live}
    points = [Point(time_s, math.nan) for time_s, item in found if item is None]
    points += [
        Point(times[item.ref], item.loss / lowest.loss if lowest.loss else 1.0)
        for item, lowest in lowest_so_far(item for _, item in found if item is not None and item.ref in times)
    ]
    return sorted(points, key=lambda point: point.time_s)


LOSS = (
    Item(
        "loss.value",
        "nats",
        "rows: loss",
        "token-weighted mean over all ranks",
        Limits(11.0, 13.0, normal="falls slowly; a random guess among 60,000 tokens is 11"),
        "see loss.ratio and loss.drift; a person decides",
        "loss-spike",
        each(field("loss")),
    ),
    Item(
        "loss.ratio",
        "x median of 256",
        "rows: loss",
        "the newest loss against those before",
        Limits(1.25, 2.0),
        "wait for the detectors; if it stays, read the report",
        "loss-spike",
        ratio_to_median(field("loss")),
    ),
    Item(
        "loss.to_best",
        "x best",
        "rows: loss",
        "the newest loss against the best one",
        Limits(1.5, 3.0),
        "roll back by hand if the ladder does not",
        "loss-spike",
        rolling(field("loss"), _best_ratio, window=600, least=1),
    ),
    Item(
        "loss.robust_z",
        "robust sigma",
        "rows: loss",
        "the newest loss against its running median",
        Limits(6.0, 12.0),
        "one step is noise; three of five open an incident",
        "loss-spike",
        rolling(field("loss"), _robust_z, window=257, least=20),
    ),
    Item(
        "loss.drift",
        "nats",
        "rows: loss",
        "mean of 20 steps above the least such mean",
        Limits(0.15, 0.25),
        "slow divergence: lower the learning rate, look at logits and norms",
        "divergence",
        rolling(field("loss"), _drift, window=300, least=40),
    ),
    Item(
        "loss.scatter",
        "share of the level",
        "rows: loss",
        "robust scatter of the last 100 losses",
        Limits(0.15, 0.5),
        "noisy data or a batch that is too small",
        "divergence",
        rolling(field("loss"), _scatter, window=100, least=20),
    ),
    Item(
        "loss.flagged_share",
        "share of 100 steps",
        "rows: flagged",
        "steps that the detectors found strange",
        Limits(0.05, 0.2),
        "read the watch lines: which batches, which layers",
        "loss-spike",
        share_of(lambda row: bool(row["flagged"])),
    ),
    Item(
        "loss.rank_spread",
        "nats",
        "rows: values loss.rank_spread",
        "largest minus smallest mean loss of a rank",
        Limits(1.0, 3.0),
        "look at the samples of that rank; if always the same rank, at its host",
        "rank-outlier",
        each(named("loss.rank_spread")),
    ),
    Item(
        "loss.evaluation",
        "x lowest",
        "events: evaluation.finished",
        "the newest loss on held-out samples against the lowest so far",
        Limits(1.03, 1.15),
        "it learns by heart: stop, and take the best checkpoint",
        "overfitting",
        _evaluated,
    ),
)
