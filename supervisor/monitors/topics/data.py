"""Monitored items about the data; pure."""

from __future__ import annotations

from collections import Counter

from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import RunView, each, field, now, over_step, rolling, share_of


def _repeated(view: RunView) -> float | None:
    """How many batches were read at more than one step of the final line."""
    final = {int(row["step"]): row.get("batch", 0) for row in view.rows[-4 * 1000 :]}
    counts = Counter(batch for batch in final.values() if batch)
    return float(sum(count - 1 for count in counts.values())) if counts else None


def _skipped_samples(view: RunView) -> float:
    return float(sum(stop - start for start, stop in view.record.skip))


DATA = (
    Item(
        "data.tokens",
        "x most seen",
        "rows: tokens",
        "real tokens of the batch against the fullest one",
        Limits(0.9, 0.5, below=True),
        "padding or masks eat the batch: look at packing",
        "data",
        rolling(field("tokens"), lambda values: values[-1] / max(*values, 1.0), window=300, least=1),
    ),
    Item(
        "data.empty_share",
        "share of 100 steps",
        "rows: outcome",
        "steps without one real token",
        Limits(0.001, 0.1),
        "look at masks and at the files",
        "data",
        share_of(lambda row: row["outcome"] == "empty"),
    ),
    Item(
        "data.repeated_batches",
        "batches",
        "rows: batch",
        "batches that came at more than one step",
        Limits(1.0, 10.0),
        "the data are shorter than the run, or the order is broken",
        "data",
        now(_repeated),
    ),
    Item(
        "data.skipped_samples",
        "samples",
        "events: ladder.decided",
        "samples that the ladder leaves out",
        Limits(1.0, 100_000.0),
        "look at them: the report names the positions",
        "data",
        now(_skipped_samples),
    ),
    Item(
        "data.time_share",
        "share of the step",
        "rows: values time.data_s",
        "time that the slowest rank waited for its batch",
        Limits(0.1, 0.3),
        "faster disk, or prepared shards",
        "throughput",
        each(over_step("time.data_s")),
    ),
)
