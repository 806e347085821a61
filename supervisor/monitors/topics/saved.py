"""Monitored items about saved state; pure."""

from __future__ import annotations

import itertools

from stormsail.supervisor.checkpoint_view import live_candidates
from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import (
    Point,
    RunView,
    counted,
    latest,
    missed_in_a_row,
    now,
    to_median,
    tries_to_save,
)

_SAVES = 20


def _next_step(view: RunView) -> int:
    return int(view.rows[-1]["step"]) + 1 if view.rows else 0


def _intervals_behind(view: RunView, *, good: bool) -> float | None:
    """Steps since the newest checkpoint, in intervals; before the first, since the start."""
    if not view.rows:
        return None
    usable = [item.ref.step for item in live_candidates(view.record) if item.good or not good]
    behind = max(0, _next_step(view) - max(usable, default=0))
    wait = view.config.checkpoint.good_after_steps if good else 0
    return max(0, behind - wait) / view.config.checkpoint.interval


def _save_age(view: RunView) -> float | None:
    commits = view.record.commits
    return view.now_s - commits[-1].time_s if commits else None


def _missed_share(view: RunView) -> list[Point]:
    tries = tries_to_save(view)
    lost = [float(missed) for _, missed in tries]
    return [
        Point(time_s, sum(lost[max(0, end - _SAVES) : end]) / min(_SAVES, end))
        for end, (time_s, _) in enumerate(tries, start=1)
    ]


def _save_of_interval(view: RunView) -> list[Point]:
    """How long each save took, against the time between two."""
    done = view.of_kind("checkpoint.committed")
    return [
        Point(after.time_s, float(str(after.data["took_s"])) / max(1e-9, after.time_s - before.time_s))
        for before, after in itertools.pairwise(done)
    ]


def _sizes(view: RunView) -> list[Point]:
    done = view.of_kind("checkpoint.committed")
    sizes = [float(str(event.data["bytes"])) for event in done]
    return [Point(done[end - 1].time_s, to_median(sizes[:end])) for end in range(2, len(done) + 1)]


def _save_of_deadline(view: RunView) -> list[Point]:
    return [
        Point(point.time_s, point.value / view.config.checkpoint.deadline_s)
        for point in latest("checkpoint.committed", "took_s")(view)
    ]


SAVED = (
    Item(
        "state.behind",
        "intervals",
        "events: checkpoint.committed; rows: step",
        "steps since the newest checkpoint, in checkpoint.every_steps",
        Limits(2.5, 6.0),
        "saves are missed or slow: `stormsail checkpoints ls RUN`",
        "missed-checkpoints",
        now(lambda view: _intervals_behind(view, good=False)),
    ),
    Item(
        "state.good_behind",
        "intervals",
        "events: checkpoint.good; rows: step",
        "steps beyond the newest known-good checkpoint and its proof",
        Limits(5.0, 20.0),
        "an open episode stops promotion; else as for state.behind",
        "missed-checkpoints",
        now(lambda view: _intervals_behind(view, good=True)),
    ),
    Item(
        "state.age_s",
        "s",
        "events: checkpoint.committed",
        "seconds since the newest checkpoint",
        Limits(1800.0, 7200.0),
        "a fault now costs this much work: save more often",
        "missed-checkpoints",
        now(_save_age),
    ),
    Item(
        "state.missed_in_a_row",
        "saves",
        "events: checkpoint.missed, checkpoint.committed",
        "saves abandoned one after another",
        Limits(1.0, 3.0),
        "look at the store: space, rights, network",
        "missed-checkpoints",
        missed_in_a_row(),
    ),
    Item(
        "state.missed_share",
        "share of 20 saves",
        "events: checkpoint.missed, checkpoint.committed",
        "saves that were abandoned",
        Limits(0.05, 0.5),
        "as for state.missed_in_a_row",
        "missed-checkpoints",
        _missed_share,
    ),
    Item(
        "state.damaged",
        "checkpoints",
        "events: checkpoint.corrupt",
        "checkpoints that failed verification",
        Limits(1.0, 3.0),
        "`stormsail checkpoints verify RUN`; look at the store and its disks",
        "damaged-checkpoint",
        counted("checkpoint.corrupt"),
    ),
    Item(
        "state.save_s",
        "share of the deadline",
        "events: checkpoint.committed",
        "how long the newest save took of checkpoint.deadline_s",
        Limits(0.5, 0.9),
        "slow store: fewer saves, deltas, or more bandwidth",
        "missed-checkpoints",
        _save_of_deadline,
    ),
    Item(
        "state.save_share",
        "share of the interval",
        "events: checkpoint.committed",
        "how long a save took of the time between two",
        Limits(0.8, 1.5),
        "saves are asked for faster than they can be written: raise checkpoint.every_steps",
        "missed-checkpoints",
        _save_of_interval,
    ),
    Item(
        "state.size",
        "x median",
        "events: checkpoint.committed",
        "size of the newest checkpoint against those before",
        Limits(1.5, 3.0),
        "less compressible state: look at the weights",
        "damaged-checkpoint",
        _sizes,
    ),
    Item(
        "state.nonfinite",
        "saves",
        "events: checkpoint.missed, checkpoint.committed",
        "states that held numbers that are not finite",
        Limits(1.0, 2.0),
        "never restored; see when it began",
        "non-finite",
        counted("checkpoint.missed", "checkpoint.committed", holds=lambda data: data.get("finite") is False),
    ),
    Item(
        "state.restore_s",
        "s",
        "events: state.restored",
        "how long the last load took",
        Limits(120.0, 900.0),
        "slow store or long delta chain",
        "lost-process",
        latest("state.restored", "took_s"),
    ),
)
