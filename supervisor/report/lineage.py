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
        limits: The generations of the live line, and the step of the state at which the line left each; None: not yet.
    """

    live: tuple[Row, ...]
    first: tuple[Row, ...]
    again: tuple[Row, ...]
    repeats: Counter[int]
    births: Mapping[int, Birth]
    limits: Mapping[int, int | None]

    def holds(self, generation: int, step: int) -> bool:
        """Whether the live line went through the state that this generation had after so many steps."""
        return generation in self.limits and _within(step, self.limits[generation])


def sort_out(events: Iterable[EventLike], rows: Sequence[Row]) -> Lineage:
    """Sort rows (in the order of `read_rows`) by whether the present run still holds them."""
    births = _births(events)
    limits = _limits(births, rows)
    live = _live_rows(limits, rows)
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
    return Lineage(live, tuple(first), tuple(again), repeats, births, limits)


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


def _limits(births: Mapping[int, Birth], rows: Sequence[Row]) -> dict[int, int | None]:
    """Follow the parents back from the newest generation; a generation counts up to where the line left it."""
    current: int | None = max([*births, *(row.generation for row in rows)], default=None)
    limits: dict[int, int | None] = {}
    limit: int | None = None
    while current is not None:
        limits[current] = limit
        birth = births.get(current)
        if birth is None or (birth.parent is not None and birth.parent >= current):
            break
        limit = birth.fork_step if limit is None else min(limit, birth.fork_step)
        current = birth.parent
    return limits


def _live_rows(limits: Mapping[int, int | None], rows: Sequence[Row]) -> tuple[Row, ...]:
    live = (row for row in rows if row.generation in limits and _within(row.step + 1, limits[row.generation]))
    return tuple(sorted(live, key=lambda row: (row.step, -row.generation)))


def _within(step: int, limit: int | None) -> bool:
    return limit is None or step <= limit
