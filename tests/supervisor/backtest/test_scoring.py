"""Alarms against labels."""

from __future__ import annotations

import pytest

from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.engine import Alarm
from stormsail.supervisor.backtest.labels import Label
from stormsail.supervisor.backtest.scoring import Score, score
from stormsail.workers.detect.rules.row import Kind, Level

RUN = Curve("run", "run.csv", tuple(Point(step, 3.0) for step in range(2000)))
EVENT = Label("run", 1000, 1010, "spike", "rollback")


def alarm(step: int, level: Level = Level.INCIDENT) -> Alarm:
    return Alarm(step, level, Kind.SPIKE, "spike", 9.0, "because")


def test_an_incident_within_fifty_steps_finds_the_event() -> None:
    made = score(RUN, [alarm(1004)], [EVENT])
    assert (made.events, made.found, made.latencies, made.right, made.false) == (1, 1, (4,), 1, 0)


@pytest.mark.parametrize("step", [998, 1051])
def test_too_early_or_too_late_is_not_found_and_not_false(step: int) -> None:
    made = score(RUN, [alarm(step)], [EVENT])
    assert (made.found, made.false, made.missed) == (0, 0, ("run@1000",))


def test_a_watch_finds_nothing_and_costs_nothing() -> None:
    made = score(RUN, [alarm(1004, Level.WATCH), alarm(500, Level.WATCH)], [EVENT])
    assert (made.found, made.false) == (0, 0)


def test_an_incident_that_belongs_to_nothing_is_false_and_near_ones_are_one() -> None:
    made = score(RUN, [alarm(500), alarm(540), alarm(580), alarm(1500)], [EVENT])
    assert (made.false, made.right, made.precision) == (2, 0, 0.0)


def test_incidents_inside_a_none_interval_are_counted_apart() -> None:
    made = score(RUN, [alarm(500), alarm(700)], [Label("run", 450, 550, "outliers", "none")])
    assert (made.false, made.on_calm) == (2, 1)


def test_an_interval_that_may_go_either_way_is_neither_right_nor_false() -> None:
    made = score(RUN, [alarm(1005)], [Label("run", 1000, 1010, "burst", "watch")])
    assert (made.events, made.right, made.false) == (0, 0, 0)


def test_the_first_steps_of_a_run_are_not_judged() -> None:
    made = score(RUN, [alarm(100)], [])
    assert (made.false, made.healthy_steps) == (0, 1700)


def test_where_rows_lie_far_apart_two_rows_are_in_time() -> None:
    coarse = Curve("run", "run", tuple(Point(step, 3.0) for step in range(0, 40000, 200)))
    assert score(coarse, [alarm(20400)], [Label("run", 19900, 21000, "s", "rollback")]).found == 1
    assert score(coarse, [alarm(20600)], [Label("run", 19900, 21000, "s", "rollback")]).found == 0


def test_healthy_steps_are_those_outside_events() -> None:
    made = score(RUN, [], [EVENT])
    assert made.healthy_steps == 1700 - (1050 + 50 - 990 + 1)


def test_labels_of_other_runs_are_left_out() -> None:
    assert score(RUN, [], [Label("other", 1, 2, "s", "rollback")]).events == 0


def test_scores_add_up() -> None:
    total = score(RUN, [alarm(1004)], [EVENT]) + score(RUN, [alarm(500)], [EVENT])
    assert (total.events, total.found, total.false, total.recall, total.precision) == (2, 1, 1, 0.5, 0.5)
    assert total.false_per_10k == pytest.approx(1e4 / total.healthy_steps)


def test_latencies_are_given_by_share() -> None:
    made = Score(latencies=(1, 2, 3, 4, 50))
    assert (made.latency(0.5), made.latency(0.9)) == (3, 50)


def test_nothing_gives_no_figures() -> None:
    empty = Score()
    assert (empty.recall, empty.precision, empty.false_per_10k, empty.latency(0.5)) == (None, None, None, None)
