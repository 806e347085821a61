"""Monitored items about updates and learning rate; pure."""

from __future__ import annotations

from collections.abc import Sequence

from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import RunView, each, field, named, now, rolling, share_of


def _in_other_precision(view: RunView) -> float | None:
    rows = view.rows[-100:]
    return sum(row["precision"] != view.config.train.precision for row in rows) / len(rows) if rows else None


def _drops(values: Sequence[float]) -> float:
    """How many of the newest in a row were dropped."""
    count = 0
    for value in reversed(values):
        if not value:
            break
        count += 1
    return float(count)


OPTIMIZER = (
    Item(
        "optimizer.lr",
        "rate",
        "rows: lr",
        "learning rate that was really used",
        Limits(1e-2, 1e-1),
        "compare with the schedule and the LR events in the report",
        "learning-rate",
        each(field("lr")),
    ),
    Item(
        "optimizer.lr_factor",
        "factor",
        "rows: lr_factor",
        "what the ladder left of the schedule's rate",
        Limits(0.999, 0.5, below=True, normal="1"),
        "it ramps back by itself; at 0.5 tier 2 counts as failed",
        "learning-rate",
        each(field("lr_factor")),
    ),
    Item(
        "optimizer.skipped_share",
        "share of 100 steps",
        "rows: outcome",
        "steps without an update",
        Limits(0.01, 0.1),
        "read the update.dropped lines: rank and first parameter",
        "non-finite",
        share_of(lambda row: row["outcome"] != "applied"),
    ),
    Item(
        "optimizer.dropped_in_a_row",
        "steps",
        "rows: outcome",
        "updates dropped one after another",
        Limits(1.0, 3.0),
        "three open an incident",
        "non-finite",
        rolling(lambda row: float(row["outcome"] == "dropped"), _drops, window=20, least=1),
    ),
    Item(
        "optimizer.overflowed",
        "ranks",
        "rows: values updates.overflowed",
        "ranks whose optimizer refused the last update by its own overflow check",
        Limits(1.0, 1.0, normal="0"),
        "the verdict on the step let a bad gradient pass: report it, with the row",
        "non-finite",
        each(named("updates.overflowed")),
    ),
    Item(
        "optimizer.loss_scale",
        "factor",
        "rows: values loss_scale",
        "what the loss is multiplied by before backward",
        Limits(0.99, 0.5, below=True, normal="1 in bf16 and fp32"),
        "a scale that falls is overflow in half precision: train in bf16",
        "non-finite",
        each(named("loss_scale")),
    ),
    Item(
        "optimizer.other_precision",
        "share of 100 steps",
        "rows: precision",
        "steps not in the run's own precision",
        Limits(0.001, 1.0),
        "an FP32 replay is under way, and ends by itself",
        "fp32-replay",
        now(_in_other_precision),
    ),
    Item(
        "optimizer.update_rms",
        "x learning rate",
        "rows: values update.rms",
        "root mean square of Adam's last update",
        Limits(1.5, 3.0),
        "Adam's second moment lags: lower beta2 or the learning rate",
        "divergence",
        each(named("update.rms")),
    ),
)
