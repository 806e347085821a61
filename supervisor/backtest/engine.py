"""Rules over a curve: what they would have said, and when. Pure.

What a rule says about neighbouring rows is one alarm. It is said when it begins and when it becomes an incident, and
again every 50 steps while it lasts, so that nobody reads "calm" from silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.supervisor.backtest.curve import Curve, Point, rows_of, run_starts
from stormsail.workers.detect.rules.registry import AnyRule
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Running
from stormsail.workers.detect.voice import NEAR_STEPS, Voice, near


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


def run(
    rules: Sequence[AnyRule], curve: Curve, past: Sequence[Point] = (), *, restarted: bool | None = None
) -> list[Alarm]:
    """All alarms of all rules, by step.

    Args:
        rules: Each begins anew, and again where a second run begins in the log.
        curve: What is judged.
        past: Rows that the rules see before, without speaking.
        restarted: The curve begins with a restart. None: it does if it begins in the middle of a run of which
            nothing is known.
    """
    if restarted is None:
        restarted = not past and bool(curve.points) and curve.points[0].step > NEAR_STEPS * curve.stride
    before, rows = list(rows_of(past)), list(rows_of(curve.points, restarted=restarted))
    starts = frozenset(run_starts(curve.points))
    alarms: list[Alarm] = []
    for rule in rules:
        running = Running(rule)
        for row in before:
            running.observe(row)
        alarms += _alarms_of(running, rows, starts)
    return sorted(alarms, key=lambda alarm: alarm.step)


def _alarms_of(running: Running[object], rows: Sequence[Row], starts: frozenset[int]) -> list[Alarm]:
    voice = Voice()
    found: list[Alarm] = []
    for index, row in enumerate(rows):
        if index in starts:  # nothing is known of another run
            running, voice = Running(running.rule), Voice()
        finding = running.observe(row)
        if finding is None:
            continue
        voice, said = voice.hear(row.step, finding.level, together=near(row.stride), restart=row.restart)
        if said:
            found.append(_alarm(running.rule.name, row, finding, repeated=said == "repeated"))
    return found


def _alarm(detector: str, row: Row, finding: Finding, *, repeated: bool) -> Alarm:
    return Alarm(row.step, finding.level, finding.kind, detector, finding.severity, finding.reason, repeated)
