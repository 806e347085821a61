"""A plateau that jumps."""

from __future__ import annotations

import math

from tests.support.rows import after, calm, findings

from stormsail.workers.detect.rules.level_shift import LevelShift
from stormsail.workers.detect.rules.row import Level, Row


def test_a_shift_is_seen_when_half_of_the_last_rows_are_on_the_new_level() -> None:
    rows = calm()
    said = findings(LevelShift(), rows + after(rows, *[(3.6, 0.3)] * 30))
    assert 200 < min(said) <= 212
    assert Level.INCIDENT in {one.level for one in said.values()}


def test_a_small_shift_is_a_watch() -> None:
    rows = calm()
    said = findings(LevelShift(), rows + after(rows, *[(3.2, 0.3)] * 30))
    assert {one.level for one in said.values()} == {Level.WATCH}


def test_a_few_outliers_are_none() -> None:
    rows = calm()
    assert not findings(LevelShift(), rows + after(rows, *[(6.0, 0.3)] * 8, *[(3.0, 0.3)] * 30))


def test_a_periodic_order_of_the_data_is_none() -> None:
    rows = [Row(row.step, row.loss + 0.1 * math.sin(row.step / 7.3), None) for row in calm(2000)]
    assert not findings(LevelShift(), rows)


def test_descent_is_none() -> None:
    rows = [Row(row.step, row.loss + 8.0 * math.exp(-row.step / 100.0), None) for row in calm(800)]
    assert not findings(LevelShift(), rows)


def test_three_rows_are_enough_where_rows_lie_far_apart() -> None:
    rows = calm(stride=100)
    assert min(findings(LevelShift(), rows + after(rows, *[(3.6, 0.3)] * 3))) <= rows[-1].step + 300
