"""Monitored items about faults and repairs; pure."""

from __future__ import annotations

from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import Point, RunView, counted, latest, now

_HOUR_S = 3600.0


def _tier(view: RunView) -> float:
    ladder = view.record.ladder
    return float(max((episode.tier.number for episode in (ladder.numeric, ladder.infra) if episode), default=0))


def _hour_budget(view: RunView) -> float:
    recent = [time_s for time_s in view.record.ladder.recent_s if view.now_s - time_s < _HOUR_S]
    return len(recent) / view.config.ladder.episodes_per_hour


def _total_budget(view: RunView) -> float:
    return view.record.ladder.spent / view.config.ladder.episodes_total


def _repeated_share(view: RunView) -> float | None:
    steps = {int(row["step"]) for row in view.rows}
    return 1.0 - len(steps) / len(view.rows) if view.rows else None


def _recoveries(view: RunView) -> list[Point]:
    """From each fault to new ground, in seconds."""
    points: list[Point] = []
    since_s: float | None = None
    for event in view.of_kind("fault.detected", "recovery.caught_up"):
        if event.kind == "fault.detected":
            since_s = event.time_s if since_s is None else since_s
        elif since_s is not None:
            points.append(Point(event.time_s, event.time_s - since_s))
            since_s = None
    return points


def _productive(view: RunView) -> float | None:
    """Time of the first execution of each step over the time since the start."""
    if not view.rows or not view.events:
        return None
    seen: set[int] = set()
    productive_s = 0.0
    for row in view.rows:
        if row["step"] not in seen:
            seen.add(row["step"])
            productive_s += float(row["step_s"])
    return productive_s / max(1e-9, view.now_s - view.events[0].time_s)


def _world(view: RunView) -> list[Point]:
    return [
        Point(point.time_s, point.value / view.config.cluster.workers)
        for point in latest("world.formed", "world_size")(view)
    ]


RECOVERY = (
    Item(
        "recovery.tier",
        "tier",
        "events: ladder.decided, episode.closed",
        "the open episode's tier; 0 is calm",
        Limits(1.0, 3.0, normal="0"),
        "nothing; at 3 prepare to look yourself",
        "incident",
        now(_tier),
    ),
    Item(
        "recovery.hour_budget",
        "share of the budget",
        "events: ladder.decided",
        "episodes of the last hour of ladder.episodes_per_hour",
        Limits(0.5, 0.9),
        "the run will stop for a person: find the common cause",
        "ladder-used-up",
        now(_hour_budget),
    ),
    Item(
        "recovery.total_budget",
        "share of the budget",
        "events: ladder.decided",
        "episodes of ladder.episodes_total",
        Limits(0.5, 0.9),
        "as for recovery.hour_budget",
        "ladder-used-up",
        now(_total_budget),
    ),
    Item(
        "recovery.attempts",
        "attempts",
        "events: attempt.started",
        "how often the processes were started",
        Limits(5.0, 20.0),
        "look which hosts are lost again and again",
        "lost-process",
        counted("attempt.started"),
    ),
    Item(
        "recovery.lost_workers",
        "faults",
        "events: fault.detected",
        "lost processes and nodes",
        Limits(1.0, 5.0),
        "if it is always the same host, take it out",
        "lost-process",
        counted("fault.detected", holds=lambda data: data.get("kind") == "process"),
    ),
    Item(
        "recovery.hangs",
        "faults",
        "events: fault.detected",
        "ranks that hung",
        Limits(1.0, 3.0),
        "read the evidence: which rank, which call",
        "hang",
        counted("fault.detected", holds=lambda data: data.get("kind") == "hang"),
    ),
    Item(
        "recovery.numeric",
        "faults",
        "events: fault.detected",
        "spikes and bad numbers that opened or climbed an episode",
        Limits(1.0, 5.0),
        "read the report: one cause or many",
        "loss-spike",
        counted("fault.detected", holds=lambda data: data.get("kind") not in ("process", "hang", "user_code")),
    ),
    Item(
        "recovery.user_errors",
        "faults",
        "events: fault.detected",
        "exceptions of the user's code",
        Limits(1.0, 2.0),
        "read the traceback in the report",
        "user-code",
        counted("fault.detected", holds=lambda data: data.get("kind") == "user_code"),
    ),
    Item(
        "recovery.dropped",
        "updates",
        "events: update.dropped",
        "updates that were never applied",
        Limits(1.0, 20.0),
        "as for gradient.nonfinite",
        "non-finite",
        counted("update.dropped"),
    ),
    Item(
        "recovery.lost_work",
        "share of steps",
        "rows: step",
        "steps that were computed more than once",
        Limits(0.05, 0.2),
        "save more often, or fewer faults",
        "lost-process",
        now(_repeated_share),
    ),
    Item(
        "recovery.last_s",
        "s",
        "events: fault.detected, recovery.caught_up",
        "from the last fault to new ground",
        Limits(300.0, 1800.0),
        "see in the report where the time went",
        "lost-process",
        _recoveries,
    ),
    Item(
        "recovery.productive",
        "share of time",
        "rows: step_s",
        "first executions of steps over the time since the start (ETTR)",
        Limits(0.9, 0.7, below=True, normal="above 0.9 on long runs; short ones mostly start"),
        "see in the report where the time went",
        "throughput",
        now(_productive),
    ),
    Item(
        "recovery.world",
        "share of workers",
        "events: world.formed",
        "ranks in the world against cluster.workers",
        Limits(0.999, 0.5, below=True, normal="1"),
        "bring the missing nodes back",
        "lost-process",
        _world,
    ),
)
