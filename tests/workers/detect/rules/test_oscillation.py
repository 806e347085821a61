"""A loss that swings more and more."""

from __future__ import annotations

import math

from tests.support.rows import calm, findings

from stormsail.workers.detect.rules.oscillation import Oscillation, OscillationState
from stormsail.workers.detect.rules.row import Finding, Level, Row


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


def judged(size: float, past: tuple[float, ...]) -> Finding | None:
    """What is said of 256 rows with such a swing, given the swings of past judgements."""
    rows = swinging(calm(256), 37.0, size, 0, growing=False)
    state = OscillationState(tuple(row.loss for row in rows[:-1]), 63, past)
    return Oscillation().observe(state, rows[-1])[1]


def test_a_judgement_that_found_no_period_does_not_make_every_swing_grown() -> None:
    steady = judged(0.15, (0.1, 0.1, 0.0, 0.1))
    assert steady is None
    grown = judged(0.3, (0.1, 0.1, 0.0, 0.1))
    assert grown is not None
    assert "from 0.100 nat or less before" in grown.reason


def test_where_no_period_was_before_the_least_that_matters_is_what_it_grew_from() -> None:
    found = judged(0.3, (0.0, 0.0))
    assert found is not None
    assert "from 0.030 nat or less before" in found.reason
    assert "e+" not in found.reason
