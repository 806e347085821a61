"""What a monitored item is: a quantity of a run, when it is normal, and what to do when it is not; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stormsail.supervisor.monitors.view import Point, RunView

RUNBOOK = "docs/runbook.md"


class State(StrEnum):
    """How an item stands, mildest first; `ABSENT` where the run has not told it yet."""

    ABSENT = "absent"
    NORMAL = "normal"
    WARN = "warn"
    DANGER = "danger"


@dataclass(frozen=True, slots=True)
class Limits:
    """Where trouble begins.

    Attributes:
        warn: From here on a person should look.
        danger: From here on a person should act.
        below: Whether small values are the bad ones.
        normal: What is normal, for people; "": the other side of `warn`.
    """

    warn: float
    danger: float
    below: bool = False
    normal: str = ""

    def state(self, value: float) -> State:
        """How this value stands; one that is not finite is always a danger."""
        if not math.isfinite(value):
            return State.DANGER
        sign = -1.0 if self.below else 1.0
        if sign * value >= sign * self.danger:
            return State.DANGER
        return State.WARN if sign * value >= sign * self.warn else State.NORMAL

    @property
    def normal_text(self) -> str:
        """What is normal, in words."""
        return self.normal or f"{'above' if self.below else 'below'} {self.warn:g}"


@dataclass(frozen=True, slots=True)
class Item:
    """One monitored item.

    Attributes:
        name: Dotted: topic and quantity.
        unit: Its unit.
        source: Where it comes from: `rows: FIELD`, `events: KIND`, `store: ...`.
        meaning: What it is, in one line.
        limits: When it is normal.
        action: What to do when it is not.
        page: Anchor in the runbook.
        series: Its values over time, oldest first; [] where the run has not told any.
    """

    name: str
    unit: str
    source: str
    meaning: str
    limits: Limits
    action: str
    page: str
    series: Callable[[RunView], Sequence[Point]]

    @property
    def runbook(self) -> str:
        """Where the runbook speaks of it."""
        return f"{RUNBOOK}#{self.page}"


@dataclass(frozen=True, slots=True)
class Reading:
    """An item of a run, now.

    Attributes:
        item: Which.
        value: Its newest value, or None.
        state: How it stands.
        since_s: Since when it stands so, in seconds since the epoch, or None.
    """

    item: Item
    value: float | None
    state: State
    since_s: float | None


def read(item: Item, view: RunView, limits: Limits | None = None) -> Reading:
    """Read an item of a run.

    Args:
        item: Which.
        view: The run.
        limits: Instead of the item's own, from a preset.
    """
    points = item.series(view)
    if not points:
        return Reading(item, None, State.ABSENT, None)
    judge = (limits or item.limits).state
    state, since_s = judge(points[-1].value), points[-1].time_s
    for point in reversed(points):
        if judge(point.value) is not state:
            break
        since_s = point.time_s
    if len(points) == 1 and since_s == view.now_s:  # known only as it is now
        return Reading(item, points[-1].value, state, None)
    return Reading(item, points[-1].value, state, since_s)
