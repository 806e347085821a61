"""Events and rows as the report reads them: typed access to what the journal and the series hold; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class EventLike(Protocol):
    """A journal event; `stormsail.platform.journal.Event` is one."""

    @property
    def number(self) -> int:
        """Place in the journal; grows."""

    @property
    def time_s(self) -> float:
        """Seconds since the epoch."""

    @property
    def kind(self) -> str:
        """What happened, with dots."""

    @property
    def generation(self) -> int:
        """Generation in force."""

    @property
    def step(self) -> int | None:
        """Step it concerns, if any."""

    @property
    def attempt(self) -> int | None:
        """Attempt in force, if any."""

    @property
    def data(self) -> Mapping[str, object]:
        """The rest, by kind."""


@dataclass(frozen=True, slots=True)
class Row:
    """One finished step; see `stormsail.platform.messages.StepRow`."""

    generation: int
    step: int
    applied: int
    loss: float | None
    tokens: int
    step_s: float
    time_s: float
    flagged: bool = False

    @property
    def begun_s(self) -> float:
        """When the step began, in seconds since the epoch."""
        return self.time_s - self.step_s


def read_rows(rows: Iterable[Mapping[str, object]]) -> list[Row]:
    """Read rows in the order in which they were computed; a row that was said twice counts once."""
    found: dict[tuple[int, int], Row] = {}
    for data in rows:
        row = Row(
            generation=whole(data, "generation") or 0,
            step=whole(data, "step") or 0,
            applied=whole(data, "applied") or 0,
            loss=real(data, "loss"),
            tokens=whole(data, "tokens") or 0,
            step_s=real(data, "step_s") or 0.0,
            time_s=real(data, "time_s") or 0.0,
            flagged=data.get("flagged") is True,
        )
        found.setdefault((row.generation, row.step), row)
    return [found[key] for key in sorted(found)]


def step_of(event: EventLike) -> int | None:
    """Return the step of an event, wherever it was put."""
    return event.step if event.step is not None else whole(event.data, "step")


def whole(data: Mapping[str, object], key: str) -> int | None:
    """Return a whole number, or None where there is none."""
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def real(data: Mapping[str, object], key: str) -> float | None:
    """Return a finite number, or None where there is none."""
    value = data.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def text(data: Mapping[str, object], key: str) -> str:
    """Return a text, or "" where there is none."""
    value = data.get(key)
    return value if isinstance(value, str) else ""


def table(data: Mapping[str, object], key: str) -> Mapping[str, object] | None:
    """Return an object, or None where there is none."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else None


def tables(data: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    """Return the objects of a list; empty where there is none."""
    value = data.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []
