"""Runs for tests of monitors, put together from rows and events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tests.support.run_kit import small_config, step_row

from stormsail.platform.journal_events import Event
from stormsail.supervisor.monitors.item import Item, Reading, read
from stormsail.supervisor.monitors.view import RunView
from stormsail.supervisor.record import Record, fold

START_S = 1_000_000.0


def steps(count: int, *, first: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Finished steps, one a second; a value that is a function is called with the step; `values` are named values."""
    found = []
    for step in range(first, first + count):
        named = changes.get("values", {})
        fields = {key: value(step) if callable(value) else value for key, value in changes.items() if key != "values"}
        row = asdict(step_row(step, **{"time_s": START_S + step, **fields}))
        found.append(
            {**row, "values": {key: value(step) if callable(value) else value for key, value in named.items()}}
        )
    return found


def happened(*told: tuple[float, str, dict[str, Any]]) -> list[Event]:
    """Events at seconds since the start."""
    return [
        Event(number, START_S + at_s, kind, int(data.get("generation", 1)), data.get("step"), 1, data)
        for number, (at_s, kind, data) in enumerate(told, start=1)
    ]


def view(
    rows: Iterable[dict[str, Any]] = (),
    events: Iterable[Event] = (),
    *,
    now_s: float = 100.0,
    record: Record | None = None,
    **config: Any,
) -> RunView:
    """A run at so many seconds since the start."""
    listed = list(events)
    return RunView(small_config(**config), list(rows), listed, record or fold(listed), START_S + now_s)


def state_of(items: Iterable[Item], name: str, run: RunView) -> Reading:
    """One item, read from a run."""
    return read(next(item for item in items if item.name == name), run)
