"""From findings to alarms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.engine import run
from stormsail.supervisor.backtest.reading import read_curves
from stormsail.supervisor.backtest.synthetic import Trouble, calm_before, healthy, troubled
from stormsail.workers.detect.rules.nonfinite_rows import NonfiniteRows
from stormsail.workers.detect.rules.presets import preset
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, limit
from stormsail.workers.detect.voice import near


@dataclass(frozen=True)
class Above(Rule[bool]):
    """A loss above 1 is a watch, above 2 an incident; the state is whether a restart was seen."""

    state_type: ClassVar[type[object]] = bool
    name: ClassVar[str] = "above"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "nats"
    source: ClassVar[str] = "test"

    watch: float = limit(1.0, "nats", "a watch")

    def _observe(self, state: bool, row: Row) -> tuple[bool, Finding | None]:
        state = state or row.restart
        if row.loss <= self.watch:
            return state, None
        return state, self.say(row.loss, str(state), Level.INCIDENT if row.loss > 2 else Level.WATCH)


def said(*losses: float, stride: int = 1) -> list[tuple[int, str, bool]]:
    curve = Curve("a", "a", tuple(Point(index * stride, loss) for index, loss in enumerate(losses)))
    return [(alarm.step, alarm.level.value, alarm.repeated) for alarm in run([Above()], curve)]


def test_neighbouring_findings_are_one_alarm_and_getting_worse_is_another() -> None:
    assert said(0, 1.5, 1.5, 3, 1.5, 3, 0) == [(1, "watch", False), (3, "incident", False)]


def test_what_lasts_is_said_again_every_fifty_steps() -> None:
    assert said(*[3.0] * 120) == [(0, "incident", False), (50, "incident", True), (100, "incident", True)]


def test_far_apart_means_two_alarms() -> None:
    assert said(3, *[0.0] * 60, 3) == [(0, "incident", False), (61, "incident", False)]


def test_where_rows_lie_far_apart_two_rows_are_near() -> None:
    assert near(100) == 200
    assert said(3, 0, 3, 0, 0, 3, stride=100) == [
        (0, "incident", False),
        (200, "incident", True),
        (500, "incident", False),
    ]


def test_alarms_of_all_rules_come_by_step() -> None:
    curve = Curve("a", "a", tuple(Point(step, float("nan") if step > 5 else 3.0) for step in range(10)))
    alarms = run([NonfiniteRows(), Above()], curve)
    assert [alarm.step for alarm in alarms] == sorted(alarm.step for alarm in alarms)
    assert {alarm.detector for alarm in alarms} == {"nonfinite", "above"}


def test_the_past_is_seen_and_not_spoken_of() -> None:
    assert run([Above()], Curve("a", "a", (Point(5, 0.0),)), [Point(4, 9.0)]) == []


def test_a_log_that_begins_in_the_middle_of_a_run_begins_with_a_restart() -> None:
    (alarm,) = run([Above()], Curve("a", "a", (Point(5000, 3.0),)))
    assert alarm.reason == "True"
    (alarm,) = run([Above()], Curve("a", "a", (Point(5000, 3.0),)), [Point(4999, 0.0)])
    assert alarm.reason == "False"


def test_the_default_is_silent_on_a_healthy_run() -> None:
    assert not [alarm for alarm in run(preset("default"), healthy(2, 2000)) if alarm.level is Level.INCIDENT]


def test_and_finds_a_spike_and_a_bad_restart() -> None:
    curve, label = troubled(2, 1200, Trouble("spike", 900, 2.0, 100.0))
    assert label.start <= min(a.step for a in run(preset("default"), curve) if a.level is Level.INCIDENT) <= 905
    curve, label = troubled(4, 1000, Trouble("resume_fault", 900, 0.9, 15.0))
    before, later = curve.points[:900], Curve("b", "b", curve.points[900:])
    first = run(preset("default"), later, before, restarted=True)[:3]
    assert (Kind.RESUME_FAULT, Level.INCIDENT) in {(alarm.kind, alarm.level) for alarm in first}


def test_a_fragment_is_judged_behind_a_calm_context() -> None:
    rows = (Point(11446, 3.0626, 12953.0), Point(11447, 3.1143, 2.6262e5), Point(11448, 7.7123, 2.547e5))
    fragment = Curve("f", "f", rows)
    assert not run(preset("default"), fragment)
    alarms = run(preset("default"), fragment, calm_before(rows, 300))
    assert 11448 in {alarm.step for alarm in alarms if alarm.level is Level.INCIDENT}


def test_two_runs_in_one_log_are_two_runs() -> None:
    first, second = healthy(2, 400).points, healthy(4, 400).points
    assert first[0].step == second[0].step
    assert not [a for a in run(preset("default"), Curve("a", "a", (*first, *second))) if a.level is Level.INCIDENT]


def incidents(
    points: Sequence[Point], past: Sequence[Point] = (), *, restarted: bool | None = None
) -> list[tuple[int, Kind]]:
    alarms = run(preset("default"), Curve("a", "a", tuple(points)), past, restarted=restarted)
    return [(alarm.step, alarm.kind) for alarm in alarms if alarm.level is Level.INCIDENT]


def smooth(start: int, stop: int, *, jump: float = 0.0) -> list[Point]:
    """Rows that still come down; `jump` nats at the first, which decay."""
    return [
        Point(step, 3.0 + 4.0 * math.exp(-step / 400.0) + jump * math.exp((start - step) / 20.0), 0.5)
        for step in range(start, stop)
    ]


FORMS = {
    "nanoGPT": "iter {step}: loss {loss:.4f}, time 123.45ms, mfu 12.3%",
    "Megatron": " iteration {step:8d}/  500000 | consumed samples: 1 | lm loss: {loss:.6E} | grad norm: 0.500 |",
    "JSON lines": '{{"step": {step}, "loss": {loss:.4f}}}',
}


@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_restart_from_an_earlier_checkpoint_is_no_incident_and_a_bad_one_is(
    tmp_path: Path, form: str
) -> None:
    for jump in (0.0, 1.5):
        points = (*smooth(0, 900), *smooth(500, 950, jump=jump))
        lines = [FORMS[form].format(step=point.step, loss=point.loss) for point in points]
        log = tmp_path / "a.log"
        log.write_text("\n".join(lines))
        (curve,) = read_curves([str(log)], Columns()).curves
        assert len(curve.points) == len(points)
        found = incidents(curve.points)
        if jump:
            assert any(500 <= step <= 510 and kind is Kind.RESUME_FAULT for step, kind in found)
        else:
            assert not found


def test_rows_that_were_given_up_are_unknown_to_the_rules() -> None:
    healthy_rows = healthy(2, 900).points
    spoiled = [replace(point, loss=point.loss + 3.0) for point in healthy_rows[500:520]]
    again = healthy_rows[500:]
    assert {step for step, _ in incidents((*healthy_rows[:500], *spoiled, *again))} <= set(range(500, 520))
    assert not incidents(again, (*healthy_rows[:500], *spoiled), restarted=True)


def test_a_log_that_begins_in_the_middle_may_go_back_to_its_first_step() -> None:
    assert not incidents((*smooth(300, 700), *smooth(300, 900)))
    assert not incidents((*smooth(300, 700), *smooth(250, 900)))


def test_steps_that_are_counted_anew_give_up_nothing() -> None:
    def late(start: int, jump: float = 0.0) -> list[Point]:
        return [replace(point, step=point.step - start) for point in smooth(start, start + 200, jump=jump)]

    assert not incidents((*late(0), *late(200), *late(400)))
    for found in (
        incidents((*late(0), *late(200), *late(400, jump=1.5))),
        incidents(late(1400, jump=1.5), smooth(1200, 1400), restarted=True),
    ):
        assert any(kind is Kind.RESUME_FAULT and step < 10 for step, kind in found)
