"""Rules over a curve: what they would have said, and when. Pure.

What a rule says about neighbouring rows is one alarm. It is said when it begins and when it becomes an incident, and
again every 50 steps while it lasts, so that nobody reads "calm" from silence.

A log that goes back to an earlier step was restarted from a checkpoint there. What the rules had learned in a live run
goes back with it, so it does here: they know the rows before that step, and none of those that were given up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.supervisor.backtest.curve import Curve, Point, is_beginning, rows_of, run_starts
from stormsail.workers.detect.rules.registry import AnyRule
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Running
from stormsail.workers.detect.voice import NEAR_STEPS, Voice, near

_KEPT_EVERY = 64  # rows between two states that are kept to go back to


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
    return sorted(
        (alarm for rule in rules for alarm in _alarms_of(rule, before, rows, starts)), key=lambda alarm: alarm.step
    )


def _alarms_of(rule: AnyRule, before: Sequence[Row], rows: Sequence[Row], starts: frozenset[int]) -> list[Alarm]:
    line, voice = _Line(rule), Voice()
    for row in before:
        line.observe(row)
    if before and rows and rows[0].step < before[0].step:  # it goes on from them by a count of its own
        line.count_anew()
    found: list[Alarm] = []
    for index, row in enumerate(rows):
        if index in starts:  # nothing is known of another run
            line, voice = _Line(rule), Voice()
        finding = line.observe(row)
        if finding is None:
            continue
        voice, said = voice.hear(row.step, finding.level, together=near(row.stride), restart=row.restart)
        if said:
            found.append(_alarm(rule.name, row, finding, repeated=said == "repeated"))
    return found


class _Line:
    """A rule along the steps of one run: at a restart it goes back to what it knew before that step."""

    def __init__(self, rule: AnyRule) -> None:
        self._running: Running[object] = Running(rule)
        self._rows: list[Row] = []  # those that count: their steps rise
        self._states: list[object] = []  # before the rows 0, 64, 128, ...

    def observe(self, row: Row) -> Finding | None:
        """Judge one row and learn from it."""
        if self._rows and row.step <= self._rows[-1].step:
            self._go_back(row)
        return self._next(row)

    def count_anew(self) -> None:
        """Keep what is known, whatever the next steps are."""
        self._rows, self._states = [], []

    def _go_back(self, row: Row) -> None:
        if is_beginning(self._rows[0], row):  # in each epoch, say: no row is given up
            self.count_anew()
            return
        kept = bisect_left(self._rows, row.step, key=lambda one: one.step)
        nearest = kept // _KEPT_EVERY
        again = self._rows[nearest * _KEPT_EVERY : kept]
        self._running.state = self._states[nearest]
        del self._rows[nearest * _KEPT_EVERY :], self._states[nearest:]
        for one in again:
            self._next(one)

    def _next(self, row: Row) -> Finding | None:
        if len(self._rows) % _KEPT_EVERY == 0:
            self._states.append(self._running.state)
        self._rows.append(row)
        return self._running.observe(row)


def _alarm(detector: str, row: Row, finding: Finding, *, repeated: bool) -> Alarm:
    return Alarm(row.step, finding.level, finding.kind, detector, finding.severity, finding.reason, repeated)
