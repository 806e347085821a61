"""Rows know what is a number in them; levels compare."""

from __future__ import annotations

import math

import pytest

from stormsail.workers.detect.rules.row import Level, Row


def test_an_incident_outranks_a_watch() -> None:
    assert Level.INCIDENT.rank > Level.WATCH.rank


@pytest.mark.parametrize(
    ("row", "finite"),
    [
        (Row(0, 1.0), True),
        (Row(0, 1.0, 2.0), True),
        (Row(0, math.nan, 2.0), False),
        (Row(0, 1.0, math.inf), False),
    ],
)
def test_a_row_is_finite_if_all_that_it_has_is(row: Row, finite: bool) -> None:
    assert row.finite is finite


@pytest.mark.parametrize("norm", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_norm_without_a_logarithm_has_none(norm: float | None) -> None:
    assert Row(0, 1.0, norm).log_norm is None


def test_the_log_norm_is_the_natural_logarithm() -> None:
    assert Row(0, 1.0, math.e).log_norm == pytest.approx(1.0)
