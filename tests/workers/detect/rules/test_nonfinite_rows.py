"""Rows that are no numbers."""

from __future__ import annotations

import math

from tests.support.rows import findings

from stormsail.workers.detect.rules.nonfinite_rows import NonfiniteRows
from stormsail.workers.detect.rules.row import Level, Row

NAN = math.nan


def levels(*rows: Row) -> list[Level | None]:
    said = findings(NonfiniteRows(), rows)
    return [said[row.step].level if row.step in said else None for row in rows]


def test_the_first_is_a_watch_and_the_third_in_a_row_an_incident() -> None:
    assert levels(*(Row(step, NAN) for step in range(3))) == [Level.WATCH, Level.WATCH, Level.INCIDENT]


def test_a_finite_row_ends_the_count() -> None:
    rows = [Row(0, NAN), Row(1, NAN), Row(2, 3.0), Row(3, math.inf), Row(4, -math.inf)]
    assert Level.INCIDENT not in levels(*rows)


def test_where_not_every_step_is_logged_two_are_enough() -> None:
    assert levels(Row(0, NAN, None, 50), Row(50, NAN, None, 50)) == [Level.WATCH, Level.INCIDENT]


def test_a_norm_may_overflow_for_a_while() -> None:
    rows = [Row(step, 3.0, math.inf) for step in range(20)]
    assert levels(*rows) == [Level.WATCH] * 19 + [Level.INCIDENT]


def test_a_loss_of_exactly_zero_beside_such_a_norm_is_none() -> None:
    rows = [Row(step, 0.0, NAN) for step in range(3)]
    assert levels(*rows) == [Level.WATCH, Level.WATCH, Level.INCIDENT]
    assert levels(Row(0, 0.0, 0.0), Row(1, 0.0)) == [None, None]


def test_in_rows_far_apart_no_scale_settles_for_long() -> None:
    rows = [Row(step, 3.0, NAN, 10) for step in range(0, 30, 10)]
    assert levels(*rows) == [Level.WATCH, Level.WATCH, Level.INCIDENT]


def test_every_second_row_becomes_an_incident_and_every_fourth_does_not() -> None:
    def found(every: int) -> list[Level | None]:
        return levels(*(Row(step, NAN if step % every == 0 else 3.0) for step in range(120)))

    assert found(2).index(Level.INCIDENT) == 18
    assert Level.INCIDENT not in found(4)
