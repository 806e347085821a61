"""A loss that swings more and more."""

from __future__ import annotations

import math

from tests.support.rows import calm, findings

from stormsail.workers.detect.rules.oscillation import Oscillation
from stormsail.workers.detect.rules.row import Level, Row


def swinging(rows: list[Row], period: float, size: float, since: int, growing: bool = True) -> list[Row]:
    return [
        Row(
            row.step,
            row.loss
            + size
            * (min(max(row.step - since, 0) / 600.0, 1.0) if growing else 1.0)
            * math.sin(2.0 * math.pi * row.step / period),
            row.grad_norm,
        )
        for row in rows
    ]


def test_a_growing_swing_is_a_watch_with_its_period() -> None:
    said = findings(Oscillation(), swinging(calm(2200), 37.0, 0.3, 1000))
    assert said
    assert min(said) > 1000
    assert {one.level for one in said.values()} == {Level.WATCH}
    assert "period of 37 steps" in said[max(said)].reason


def test_a_swing_from_the_beginning_is_the_order_of_the_data() -> None:
    assert not findings(Oscillation(), swinging(calm(2200), 46.0, 0.12, 0, growing=False))


def test_a_known_period_and_its_multiples_are_left_out() -> None:
    rows = swinging(calm(2200), 37.0, 0.3, 1000)
    assert not findings(Oscillation(data_period=37), rows)
    assert findings(Oscillation(data_period=25), rows)


def test_noise_has_no_period() -> None:
    assert not findings(Oscillation(), calm(3000))
