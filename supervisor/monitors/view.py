"""A run as monitors see it, and how values over time are made from its rows and events; pure.

A maker takes what it needs and returns a function from a run to points. Only the newest rows are looked at: what an
item says now does not depend on how long the run has been running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from stormsail.platform.config.model import RunConfig
from stormsail.platform.journal_events import Event
from stormsail.supervisor.record import Record

Row = Mapping[str, Any]
TAIL = 600  # rows that are looked at
_WINDOW = 256


@dataclass(frozen=True, slots=True)
class Point:
    """A value and when it held, in seconds since the epoch."""

    time_s: float
    value: float


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, read from its storage.

    Attributes:
        config: Its configuration.
        rows: Its finished steps, in the order in which they were computed.
        events: Its journal.
        record: What follows from the journal.
        now_s: The time of looking; for a run that is over, the time of its end.
    """

    config: RunConfig
    rows: Sequence[Row]
    events: Sequence[Event]
    record: Record
    now_s: float

    @property
    def tail(self) -> Sequence[Row]:
        """The newest rows."""
        return self.rows[-TAIL:]

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]


Series = Callable[[RunView], Sequence[Point]]
RowValue = Callable[[Row], float | None]


def number(found: object) -> float | None:
    """A number as a float, else None; true and false are none."""
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def field(name: str) -> RowValue:
    """A field of the row."""
    return lambda row: number(row.get(name))


def named(name: str) -> RowValue:
    """A named value of the row, where it has one."""
    return lambda row: number(row.get("values", {}).get(name))


def over_step(name: str) -> RowValue:
    """A named time of the row, as a share of its step's time."""

    def share(row: Row) -> float | None:
        part, whole = named(name)(row), field("step_s")(row)
        return part / whole if part is not None and whole else None

    return share


def each(value: RowValue) -> Series:
    """A value of every row that has it."""
    return lambda view: _points(view, value)


def rolling(value: RowValue, summary: Callable[[Sequence[float]], float], *, window: int, least: int = 2) -> Series:
    """A summary of the last values at every row.

    Args:
        value: Of each row.
        summary: Of up to `window` values, the newest last.
        window: How many.
        least: With fewer there is nothing to say.
    """

    def series(view: RunView) -> list[Point]:
        points = _points(view, value)
        values = [point.value for point in points]
        return [
            Point(points[end - 1].time_s, summary(values[max(0, end - window) : end]))
            for end in range(least, len(points) + 1)
        ]

    return series


def to_median(values: Sequence[float]) -> float:
    """The newest against the median of those before; 1 where that is 0."""
    usual = median(values[:-1])
    return values[-1] / usual if usual else 1.0


def ratio_to_median(value: RowValue) -> Series:
    """Each value against the median of up to 256 before it."""
    return rolling(value, to_median, window=_WINDOW + 1, least=9)


def share_of(holds: Callable[[Row], bool], *, window: int = 100) -> Series:
    """In what share of the last rows something holds."""
    return rolling(lambda row: float(holds(row)), lambda values: sum(values) / len(values), window=window, least=1)


def counted(*kinds: str, holds: Callable[[Mapping[str, Any]], bool] = lambda _data: True) -> Series:
    """How many events of these kinds there were; 0 from the run's first event on."""

    def series(view: RunView) -> list[Point]:
        points = [Point(view.events[0].time_s, 0.0)] if view.events else []
        found = [event for event in view.of_kind(*kinds) if holds(event.data)]
        return points + [Point(event.time_s, float(count)) for count, event in enumerate(found, start=1)]

    return series


def latest(kind: str, name: str) -> Series:
    """A field of the events of a kind."""

    def series(view: RunView) -> list[Point]:
        found = ((event.time_s, number(event.data.get(name))) for event in view.of_kind(kind))
        return [Point(time_s, value) for time_s, value in found if value is not None]

    return series


def outage(began: str, ended: str) -> Series:
    """For how many seconds something has been away: 0 while it is not."""

    def series(view: RunView) -> list[Point]:
        points = [Point(view.events[0].time_s, 0.0)] if view.events else []
        since_s: float | None = None
        for event in view.of_kind(began, ended):
            since_s = event.time_s if event.kind == began else None
            points.append(Point(event.time_s, 0.0))
        return points if since_s is None else [*points[:-1], Point(since_s, view.now_s - since_s)]

    return series


def tries_to_save(view: RunView) -> list[tuple[float, bool]]:
    """When each save was given up or published, and whether it was given up; all ranks may tell of one that was."""
    found: dict[tuple[object, int | None], tuple[float, bool]] = {}
    for event in view.of_kind("checkpoint.missed", "checkpoint.committed"):
        key = (event.data.get("generation"), event.step)
        found.setdefault(key, (event.time_s, event.kind == "checkpoint.missed"))
    return list(found.values())


def missed_in_a_row() -> Series:
    """How many saves were given up since the last one that was published."""

    def series(view: RunView) -> list[Point]:
        points = [Point(view.events[0].time_s, 0.0)] if view.events else []
        count = 0
        for time_s, missed in tries_to_save(view):
            count = count + 1 if missed else 0
            points.append(Point(time_s, float(count)))
        return points

    return series


def now(value: Callable[[RunView], float | None]) -> Series:
    """A value that is known only as it is now."""

    def series(view: RunView) -> list[Point]:
        found = value(view)
        return [] if found is None else [Point(view.now_s, found)]

    return series


def _points(view: RunView, value: RowValue) -> list[Point]:
    found = ((float(row["time_s"]), value(row)) for row in view.tail)
    return [Point(time_s, known) for time_s, known in found if known is not None]
