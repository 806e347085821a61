"""Alarms against labels: what was found, how soon, and what was cried in vain. Pure.

Only incidents count, since only they cost anything; alarms within 50 steps (2 rows where rows lie far apart) are one.
An event is found by an incident between its onset and 50 steps, or 2 rows, later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stormsail.supervisor.backtest.curve import Curve, rows_of
from stormsail.supervisor.backtest.engine import Alarm
from stormsail.supervisor.backtest.labels import CALM, Label
from stormsail.workers.detect.rules.row import Level
from stormsail.workers.detect.voice import NEAR_ROWS, NEAR_STEPS, near

UNLABELLED_STEPS = 300
"""The first steps of a run are not judged."""


@dataclass(frozen=True, slots=True)
class Score:
    """How one rule, or a whole preset, did.

    Attributes:
        events: Labelled events.
        found: Those with an incident in time.
        latencies: Steps from onset to the first such incident, for each one found.
        right: Incidents that belong to an event.
        false: Incidents that belong to nothing.
        on_calm: Those of them inside an interval labelled `none`.
        healthy_steps: Steps outside every event.
        missed: Where an event was not found: `series@step`.
    """

    events: int = 0
    found: int = 0
    latencies: tuple[int, ...] = ()
    right: int = 0
    false: int = 0
    on_calm: int = 0
    healthy_steps: int = 0
    missed: tuple[str, ...] = field(default=())

    def __add__(self, other: Score) -> Score:
        return Score(
            self.events + other.events,
            self.found + other.found,
            self.latencies + other.latencies,
            self.right + other.right,
            self.false + other.false,
            self.on_calm + other.on_calm,
            self.healthy_steps + other.healthy_steps,
            self.missed + other.missed,
        )

    @property
    def recall(self) -> float | None:
        """Share of the events that was found; None without events."""
        return self.found / self.events if self.events else None

    @property
    def precision(self) -> float | None:
        """Share of the incidents that was right; None without incidents."""
        return self.right / (self.right + self.false) if self.right + self.false else None

    @property
    def false_per_10k(self) -> float | None:
        """False incidents per 10,000 healthy steps; None without healthy steps."""
        return 1e4 * self.false / self.healthy_steps if self.healthy_steps else None

    def latency(self, share: float) -> int | None:
        """The latency, in steps, that `share` of the found events do not exceed; None if none was found."""
        ordered = sorted(self.latencies)
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None

    def to_json(self) -> dict[str, object]:
        """All figures as JSON values."""
        return {
            "events": self.events,
            "found": self.found,
            "recall": self.recall,
            "latency_median_steps": self.latency(0.5),
            "latency_p90_steps": self.latency(0.9),
            "precision": self.precision,
            "false_incidents": self.false,
            "false_on_none": self.on_calm,
            "healthy_steps": self.healthy_steps,
            "false_per_10k_steps": self.false_per_10k,
            "missed": list(self.missed),
        }


def score(curve: Curve, alarms: Iterable[Alarm], labels: Sequence[Label]) -> Score:
    """Judge the alarms on one curve.

    Args:
        curve: The curve.
        alarms: By step; of one rule or of several together.
        labels: Of any curves; those of this one are used.
    """
    mine = [label for label in labels if label.series == curve.name]
    zones = [(label, _deadline(curve, label)) for label in mine]
    incidents = _merged([alarm.step for alarm in alarms if alarm.level is Level.INCIDENT], near(curve.stride))
    firsts = {label: _first(alarms, label, deadline) for label, deadline in zones if label.is_event}
    busy = [
        (label.start - NEAR_STEPS // 5, max(label.end, until) + NEAR_STEPS, label.is_event)
        for label, until in zones
        if label.action != CALM
    ]
    false = [step for step, last in incidents if not any(low <= last and step <= high for low, high, _ in busy)]
    false = [step for step in false if not _unlabelled(curve, step)]
    right = sum(any(event and low <= last and step <= high for low, high, event in busy) for step, last in incidents)
    return Score(
        events=len(firsts),
        found=sum(step is not None for step in firsts.values()),
        latencies=tuple(step - label.start for label, step in firsts.items() if step is not None),
        right=right,
        false=len(false),
        on_calm=sum(any(label.action == CALM and label.start <= step <= label.end for label in mine) for step in false),
        healthy_steps=_healthy(curve, [(low, high) for low, high, _ in busy]),
        missed=tuple(f"{curve.name}@{label.start}" for label, step in firsts.items() if step is None),
    )


def _deadline(curve: Curve, label: Label) -> int:
    """Last step at which an alarm still counts as in time."""
    later = [point.step for point in curve.points if point.step >= label.start][: NEAR_ROWS + 1]
    return max(label.start + NEAR_STEPS, *later, label.start)


def _first(alarms: Iterable[Alarm], label: Label, deadline: int) -> int | None:
    steps = (alarm.step for alarm in alarms if alarm.level is Level.INCIDENT)
    return min((step for step in steps if label.start <= step <= deadline), default=None)


def _merged(steps: Iterable[int], together: int) -> list[tuple[int, int]]:
    """First and last step of each group of alarms."""
    groups: list[tuple[int, int]] = []
    for step in sorted(steps):
        if groups and step - groups[-1][1] <= together:
            groups[-1] = (groups[-1][0], step)
        else:
            groups.append((step, step))
    return groups


def _unlabelled(curve: Curve, step: int) -> bool:
    """Whether this lies in the first steps of a run; a log that begins later has none."""
    return step < UNLABELLED_STEPS and curve.points[0].step < UNLABELLED_STEPS


def _healthy(curve: Curve, busy: Sequence[tuple[int, int]]) -> int:
    return sum(
        row.stride
        for row in rows_of(curve.points)
        if not _unlabelled(curve, row.step) and not any(low <= row.step <= high for low, high in busy)
    )
