"""The stable band's end and its drift with the width."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.tuning.edge import Edge, fit_edges, grid_steps_apart, stable_edge


@pytest.mark.parametrize(
    ("stable", "edge"),
    [
        ([True, True, False, True], Edge(0.2, open_end=False)),
        ([True, True, True, True], Edge(0.8, open_end=True)),
        ([False, True, True, True], Edge(None, open_end=False)),
    ],
)
def test_the_band_ends_before_the_first_rate_that_failed(stable: list[bool], edge: Edge) -> None:
    assert stable_edge({0.1 * 2**i: [ok] for i, ok in enumerate(stable)}) == edge


def test_one_seed_that_failed_ends_the_band() -> None:
    assert stable_edge({0.1: [True, True], 0.2: [True, False]}) == Edge(0.1, open_end=False)
    assert stable_edge({0.1: []}) == Edge(None, open_end=False)


@given(st.floats(-1.0, 1.0), st.floats(-6.0, 0.0))
def test_a_power_law_is_found_again_and_carried_on(slope: float, intercept: float) -> None:
    def edge(width: float) -> float:
        return math.exp(intercept + slope * math.log(width))

    fit = fit_edges([(width, edge(width)) for width in (16, 32, 64)])
    assert fit is not None
    assert fit.at(256) == pytest.approx(edge(256), rel=1e-6)


@pytest.mark.parametrize("widths", [(32, 32), (32, 64)])
def test_fewer_than_three_widths_know_no_drift(widths: tuple[float, float]) -> None:
    fit = fit_edges([(widths[0], 0.1), (widths[1], 0.4)])
    assert fit is not None
    assert (fit.slope, fit.widths) == (0.0, len(set(widths)))
    assert fit.at(999) == pytest.approx(0.1)
    assert fit_edges([]) is None


def test_distance_is_counted_in_steps_of_the_grid() -> None:
    grid = [0.1, 0.2, 0.4, 0.8]
    assert grid_steps_apart(0.11, 0.39, grid) == 2
    assert grid_steps_apart(0.8, 5.0, grid) == 3
    assert grid_steps_apart(0.1, 0.024, grid) == 2
    assert grid_steps_apart(0.03, 12.0, grid) == 9
