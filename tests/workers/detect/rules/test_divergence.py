"""A loss that climbs too gently for any step to stand out."""

from __future__ import annotations

import math

from tests.support.rows import after, calm, findings

from stormsail.workers.detect.rules.divergence import SlowDivergence
from stormsail.workers.detect.rules.row import Level, Row


def risen(by: float, over: int, rows: list[Row], stride: int = 1) -> list[Row]:
    noise = calm(over)
    return rows + [
        Row(rows[-1].step + (index + 1) * stride, row.loss + by * index / over, row.grad_norm, stride)
        for index, row in enumerate(noise)
    ]


def incidents(rows: list[Row]) -> list[int]:
    return [step for step, one in findings(SlowDivergence(), rows).items() if one.level is Level.INCIDENT]


def test_a_slow_rise_is_seen_soon_after_a_quarter_of_a_nat() -> None:
    seen = incidents(risen(1.0, 800, calm(400)))
    assert 400 + 200 <= seen[0] <= 400 + 200 + 50


def test_half_the_margin_is_a_watch() -> None:
    said = findings(SlowDivergence(), risen(0.2, 400, calm(400)))
    assert {one.level for one in said.values()} == {Level.WATCH}


def test_early_descent_is_no_divergence_and_does_not_hide_one() -> None:
    noise = calm(600)
    descent = [Row(row.step, row.loss + 8.0 * math.exp(-row.step / 60.0), row.grad_norm) for row in noise]
    assert not findings(SlowDivergence(), descent)
    assert incidents(risen(1.0, 500, descent))


def test_outliers_do_not_reach_the_average() -> None:
    rows = calm(400)
    for _ in range(5):
        rows += after(rows, (7.0, 0.3), (7.0, 0.3), *[(3.0, 0.3)] * 20)
    assert not findings(SlowDivergence(), rows)


def test_the_margin_grows_with_the_noise() -> None:
    rows = [Row(row.step, 3.0 + 15.0 * (row.loss - 3.0), None) for row in calm(3000)]  # of one rank
    assert not findings(SlowDivergence(), rows)


def test_rows_far_apart_are_judged_too() -> None:
    assert incidents(risen(2.0, 60, calm(150, stride=100), stride=100))


def test_a_level_reached_long_ago_is_forgotten() -> None:
    rows = calm(400)
    rows += [Row(row.step, row.loss + 1.0, row.grad_norm) for row in calm(2500, start=400)]
    assert incidents(rows)[-1] < 400 + 1700
