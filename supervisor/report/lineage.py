"""Which of all computed steps make up the run as it is now, and which were computed again; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stormsail.supervisor.report.fields import EventLike, Row, step_of, whole


@dataclass(frozen=True, slots=True)
class Birth:
    """How a generation began.

    Attributes:
        parent: Generation whose state it went on from, or None for the initial state.
        fork_step: First step that it computes itself.
        number: Journal number of the event that says so.
    """

    parent: int | None
    fork_step: int
    number: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """Rows, sorted out.

    Attributes:
        live: The row of each step of the live line, oldest first.
        first: First executions of steps that the live line holds: what was productive.
        again: The other executions: computed again, or thrown away.
        repeats: Steps computed a second time, by the generation that did.
        births: How each generation began.
    """

    live: tuple[Row, ...]
    first: tuple[Row, ...]
    again: tuple[Row, ...]
    repeats: Counter[int]
    births: Mapping[int, Birth]


def sort_out(events: Iterable[EventLike], rows: Sequence[Row]) -> Lineage:
    """Sort rows (in the order of `read_rows`) by whether the present run still holds them."""
    births = _births(events)
    live = _live_rows(births, rows)
    kept = {row.step for row in live}
    seen: set[int] = set()
    first: list[Row] = []
    again: list[Row] = []
    repeats: Counter[int] = Counter()
    for row in rows:
        repeated = row.step in seen
        seen.add(row.step)
        repeats[row.generation] += repeated
        (again if repeated or row.step not in kept else first).append(row)
    return Lineage(live, tuple(first), tuple(again), repeats, births)


def _births(events: Iterable[EventLike]) -> dict[int, Birth]:
    births = {}
    for event in events:
        if event.kind == "generation.created":
            made = whole(event.data, "generation")
            fork = whole(event.data, "fork_step")
            births[event.generation if made is None else made] = Birth(
                parent=whole(event.data, "parent"),
                fork_step=(step_of(event) or 0) if fork is None else fork,
                number=event.number,
            )
    return births


def _live_rows(births: Mapping[int, Birth], rows: Sequence[Row]) -> tuple[Row, ...]:
    """Follow the parents back from the newest generation; a generation counts up to where the line left it."""
    by_generation: dict[int, list[Row]] = {}
    for row in rows:
        by_generation.setdefault(row.generation, []).append(row)
    current: int | None = max([*births, *by_generation], default=None)
    limit: int | None = None
    live: list[Row] = []
    while current is not None:
        live += [row for row in by_generation.get(current, []) if limit is None or row.step < limit]
        birth = births.get(current)
        if birth is None or (birth.parent is not None and birth.parent >= current):
            break
        limit = birth.fork_step if limit is None else min(limit, birth.fork_step)
        current = birth.parent
    return tuple(sorted(live, key=lambda row: row.step))
