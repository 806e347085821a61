"""The registry and a run's readings, as JSON values and as text; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from stormsail.supervisor.monitors.item import Item, Limits, Reading, State, read
from stormsail.supervisor.monitors.table import items_of
from stormsail.supervisor.monitors.view import RunView

_MARKS = {State.ABSENT: " ", State.NORMAL: " ", State.WARN: "!", State.DANGER: "X"}


def table_json(preset: str) -> list[dict[str, Any]]:
    """Every item of a preset, without a run."""
    return [_item_json(item, limits) for item, limits in items_of(preset)]


def readings_of(view: RunView, preset: str) -> list[tuple[Reading, Limits]]:
    """Every item of a preset, read from a run."""
    return [(read(item, view, limits), limits) for item, limits in items_of(preset)]


def readings_json(readings: Sequence[tuple[Reading, Limits]]) -> list[dict[str, Any]]:
    """Items with their live state; a value that is not finite becomes its name."""
    return [
        {
            **_item_json(reading.item, limits),
            "value": _plain(reading.value),
            "level": str(reading.state),
            "since_s": reading.since_s,
        }
        for reading, limits in readings
    ]


def render_table(preset: str) -> str:
    """The registry as text."""
    return "\n".join(_table_lines(preset))


def render_readings(readings: Sequence[tuple[Reading, Limits]], *, now_s: float) -> str:
    """A run's readings as text: what needs a person first, then everything by topic."""
    return "\n".join(_reading_lines(readings, now_s))


def _item_json(item: Item, limits: Limits) -> dict[str, Any]:
    return {
        "name": item.name,
        "unit": item.unit,
        "source": item.source,
        "meaning": item.meaning,
        "normal": limits.normal_text,
        "warn": limits.warn,
        "danger": limits.danger,
        "bad_side": "below" if limits.below else "above",
        "action": item.action,
        "runbook": item.runbook,
    }


def _table_lines(preset: str) -> Iterator[str]:
    topic = ""
    for item, limits in items_of(preset):
        if item.name.partition(".")[0] != topic:
            topic = item.name.partition(".")[0]
            yield f"{topic}"
        sign = "<=" if limits.below else ">="
        yield f"  {item.name:<28} {item.meaning} [{item.unit}]"
        yield f"  {'':<28} normal {limits.normal_text}; warn {sign} {limits.warn:g}, danger {sign} {limits.danger:g}"
        yield f"  {'':<28} {item.action} ({item.runbook}); from {item.source}"


def _reading_lines(readings: Sequence[tuple[Reading, Limits]], now_s: float) -> Iterator[str]:
    counts = {state: sum(reading.state is state for reading, _ in readings) for state in State}
    yield (
        f"{len(readings)} items: {counts[State.DANGER]} in danger, {counts[State.WARN]} to look at, "
        f"{counts[State.NORMAL]} normal, {counts[State.ABSENT]} not told yet"
    )
    for reading, limits in readings:
        if reading.state in (State.WARN, State.DANGER):
            yield f"{_line(reading, now_s)}; normal is {limits.normal_text}"
            yield f"     {reading.item.meaning}: {reading.item.action} ({reading.item.runbook})"
    yield ""
    for reading, _ in readings:
        yield _line(reading, now_s)


def _line(reading: Reading, now_s: float) -> str:
    value = "-" if reading.value is None else f"{reading.value:.4g}"
    since = "" if reading.since_s is None else f"  for {max(0.0, now_s - reading.since_s):,.0f} s"
    return f"{_MARKS[reading.state]} {reading.item.name:<28} {value:>10} {reading.item.unit}  {reading.state}{since}"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
