"""What is out of the ordinary, measured against the run's own calm rows."""

from __future__ import annotations

import math

import pytest
from tests.support.scripted_run import NAMES, calm

from stormsail.platform.diagnosis import Sign, Trace, TraceRow
from stormsail.workers.detect.signs import dead_groups, find_onset, limits_of, signs_of

CALM = [calm(step) for step in range(40)]


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        ({"loss": 3.0}, Sign.LOSS),
        ({"loss": 1.0}, Sign.LOSS_LOW),
        ({"grad_norm": 9.0}, Sign.NORM),
        ({"update_rms": 0.5}, Sign.UPDATE),
        ({"lr": 2e-3}, Sign.RATE),
        ({"zero_share": 0.1}, Sign.DEAD),
        ({"groups": (0.5, 0.5, 0.0, 0.4, 0.1)}, Sign.DEAD),
        ({"loss": math.nan}, Sign.NONFINITE),
        ({"nonfinite": 1}, Sign.NONFINITE),
    ],
)
def test_each_sign_is_seen_alone(changes: dict[str, object], sign: Sign) -> None:
    limits = limits_of(CALM)
    assert limits is not None
    assert signs_of(calm(40, **changes), limits) == {sign}


def test_calm_rows_show_no_sign() -> None:
    limits = limits_of(CALM)
    assert limits is not None
    assert not any(signs_of(row, limits) for row in CALM)


def test_rows_that_do_not_know_layers_are_no_dead_ones() -> None:
    limits = limits_of(CALM)
    assert limits is not None
    assert dead_groups(calm(40, groups=()), limits) == ()


def test_few_rows_teach_nothing() -> None:
    assert limits_of(CALM[:11]) is None


def trace(*rows: TraceRow) -> Trace:
    return Trace(NAMES, (*CALM, *rows))


def test_the_onset_is_the_first_sign_even_before_the_reported_one() -> None:
    rows = (calm(40), calm(41, lr=1e-2), calm(42, lr=1e-2), calm(43, loss=3.0, lr=1e-2))
    assert find_onset(trace(*rows), 43) == 41


def test_a_reported_onset_stands_where_no_row_shows_a_sign() -> None:
    assert find_onset(trace(calm(40), calm(41)), 41) == 41


def test_somebody_who_asks_gets_the_first_sign_or_the_strangest_step_or_none() -> None:
    assert find_onset(trace(calm(40), calm(41, loss=3.0), calm(42, loss=4.0)), None) == 41
    assert find_onset(trace(calm(40), calm(41, loss=2.07)), None) == 41
    assert find_onset(trace(calm(40), calm(41)), None) is None
