"""Rules over a curve: what they would have said, and when. Pure.

What a rule says about neighbouring rows is one alarm. It is said when it begins and when it becomes an incident, and
again every 50 steps while it lasts, so that nobody reads "calm" from silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.supervisor.backtest.curve import Curve, Point, rows_of
from stormsail.workers.detect.rules.registry import AnyRule
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Running

NEAR_STEPS = 50
"""Alarms of one rule that are no further apart are one."""

NEAR_ROWS = 2
"""The same where rows lie far apart."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """What one rule said.

    Attributes:
        step: When.
        level: How much it may cost.
        kind: What it looks like.
        detector: The rule's name.
        severity: In the rule's own unit.
        reason: Why.
        repeated: It has been said before, and is still so.
    """

    step: int
    level: Level
    kind: Kind
    detector: str
    severity: float
    reason: str
    repeated: bool = False


def near(stride: int) -> int:
    """Steps within which two alarms are one, for rows `stride` steps apart."""
    return max(NEAR_STEPS, NEAR_ROWS * stride)


def run(
    rules: Sequence[AnyRule], curve: Curve, past: Sequence[Point] = (), *, restarted: bool | None = None
) -> list[Alarm]:
    """All alarms of all rules, by step.

    Args:
        rules: Each begins anew.
        curve: What is judged.
        past: Rows that the rules see before, without speaking.
        restarted: The curve begins with a restart. None: it does if it begins in the middle of a run of which
            nothing is known.
    """
    if restarted is None:
        restarted = not past and bool(curve.points) and curve.points[0].step > NEAR_STEPS * curve.stride
    before, rows = list(rows_of(past)), list(rows_of(curve.points, restarted=restarted))
    alarms: list[Alarm] = []
    for rule in rules:
        running = Running(rule)
        for row in before:
            running.observe(row)
        alarms += _alarms_of(running, rows)
    return sorted(alarms, key=lambda alarm: alarm.step)


class _Voice:
    """Turns one rule's findings into alarms."""

    def __init__(self, detector: str) -> None:
        self._detector = detector
        self._level: Level | None = None
        self._heard = 0
        self._said = 0

    def hear(self, row: Row, finding: Finding) -> Alarm | None:
        """The alarm that this finding makes, if any."""
        together = near(row.stride)
        lasting = self._level is not None and 0 <= row.step - self._heard <= together and not row.restart
        worse = lasting and self._level is not None and finding.level.rank > self._level.rank
        self._heard = row.step
        if lasting and not worse and (finding.level is not self._level or row.step - self._said < together):
            return None
        self._level, self._said = finding.level, row.step
        return Alarm(
            row.step,
            finding.level,
            finding.kind,
            self._detector,
            finding.severity,
            finding.reason,
            repeated=lasting and not worse,
        )


def _alarms_of(running: Running[object], rows: Sequence[Row]) -> list[Alarm]:
    voice = _Voice(running.rule.name)
    found: list[Alarm] = []
    for row in rows:
        finding = running.observe(row)
        alarm = None if finding is None else voice.hear(row, finding)
        if alarm is not None:
            found.append(alarm)
    return found
