"""Monitored items about what a run depends on: store, tracking, resources, alerts; pure."""

from __future__ import annotations

from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import Point, RunView, counted, outage


def _starts(view: RunView) -> list[Point]:
    """From the start of each attempt to its first step, in seconds."""
    points = []
    for event in view.of_kind("attempt.started"):
        first = next((row for row in view.rows if float(row["time_s"]) > event.time_s), None)
        if first is not None:
            points.append(Point(event.time_s, float(first["time_s"]) - event.time_s))
    return points


def _unsent_alerts(view: RunView) -> list[Point]:
    return list(counted("alert.failed", "alert.unusable")(view))


SERVICES = (
    Item(
        "services.store_away_s",
        "s",
        "events: store.away, store.back",
        "for how long the store has been away",
        Limits(1.0, 300.0, normal="0"),
        "bring it back; a fault meanwhile waits for it",
        "store-away",
        outage("store.away", "store.back"),
    ),
    Item(
        "services.tracking_away_s",
        "s",
        "events: tracking.away, tracking.back",
        "for how long MLflow has been away",
        Limits(1.0, 86_400.0, normal="0"),
        "nothing is lost; bring it back when convenient",
        "tracking-away",
        outage("tracking.away", "tracking.back"),
    ),
    Item(
        "services.waiting_s",
        "s",
        "events: resources.waiting, resources.ready",
        "for how long the run has waited for resources",
        Limits(60.0, 600.0),
        "add nodes, or stop other jobs",
        "no-resources",
        outage("resources.waiting", "resources.ready"),
    ),
    Item(
        "services.start_s",
        "s",
        "events: attempt.started; rows: time_s",
        "from the start of the last attempt to its first step",
        Limits(180.0, 600.0),
        "look which phase it waited in: `stormsail events RUN`",
        "slow-start",
        _starts,
    ),
    Item(
        "services.slow",
        "times",
        "events: throughput.collapsed",
        "how often throughput collapsed",
        Limits(1.0, 5.0),
        "as for speed.tokens_per_s",
        "throughput",
        counted("throughput.collapsed"),
    ),
    Item(
        "services.alerts_lost",
        "messages",
        "events: alert.failed, alert.unusable",
        "alerts that did not reach anybody",
        Limits(1.0, 5.0),
        "`stormsail alerts test FILE`",
        "alerts-lost",
        _unsent_alerts,
    ),
)
