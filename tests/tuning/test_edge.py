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
        ([True, True, False, True], Edge(0.2, 0.4)),
        ([True, True, True, True], Edge(0.8, None)),
        ([False, True, True, True], Edge(None, 0.1)),
    ],
)
def test_the_band_ends_before_the_first_rate_that_failed(stable: list[bool], edge: Edge) -> None:
    assert stable_edge({0.1 * 2**i: [ok] for i, ok in enumerate(stable)}) == edge


def test_one_seed_that_failed_ends_the_band() -> None:
    assert stable_edge({0.1: [True, True], 0.2: [True, False]}) == Edge(0.1, 0.2)
    assert stable_edge({0.1: []}) == Edge(None, 0.1)
    assert [edge.open_end for edge in (Edge(0.1, 0.2), Edge(0.1, None), Edge(None, 0.1))] == [False, True, False]


def step_of(edge: float) -> Edge:
    """What a grid of powers of two tells of an edge."""
    low = 2.0 ** math.floor(math.log2(edge))
    return Edge(low, 2 * low)


@given(st.floats(-1.0, 1.0), st.floats(-6.0, 0.0), st.lists(st.integers(4, 12), min_size=3, max_size=5, unique=True))
def test_a_power_law_is_found_as_far_as_the_grid_tells_it(slope: float, intercept: float, octaves: list[int]) -> None:
    edges = {2**octave: step_of(math.exp(intercept) * 2 ** (slope * octave)) for octave in octaves}
    fit = fit_edges(edges.items())
    assert fit is not None
    assert abs(fit.likely.slope) <= abs(slope) + 1e-9
    for width, edge in edges.items():
        assert edge.lr is not None
        assert edge.lr * (1 - 1e-6) <= fit.expected(width) <= 2 * edge.lr * (1 + 1e-6)


@given(st.floats(-1.0, 1.0), st.floats(-6.0, 0.0))
def test_a_fine_grid_tells_the_power_law(slope: float, intercept: float) -> None:
    def edge(width: float) -> float:
        return math.exp(intercept + slope * math.log(width))

    fit = fit_edges((width, Edge(edge(width), edge(width) * 1.001)) for width in (16, 32, 64))
    assert fit is not None
    assert fit.expected(256) == pytest.approx(edge(256), rel=0.01)


@pytest.mark.parametrize(
    ("edges", "slope", "expected"),
    [
        ((0.08, 0.08, 0.08), 0.0, 0.08),
        ((0.08, 0.04, 0.04), 0.0, 0.08),  # all three could be 0.08
        ((0.04, 0.08, 0.04), 0.0, 0.08),
        ((0.16, 0.08, 0.04), -0.5, 0.04),  # half of the slope through the points explains them
        ((0.32, 0.08, 0.02), -1.5, 0.005),
        ((0.16, 0.04, 0.08), -0.5, 0.04),  # no line runs through all three
    ],
)
def test_a_drift_is_told_only_as_far_as_the_grid_demands_it(
    edges: tuple[float, ...], slope: float, expected: float
) -> None:
    fit = fit_edges((width, Edge(lr, 2 * lr)) for width, lr in zip((16, 32, 64), edges, strict=True))
    assert fit is not None
    assert (fit.likely.slope, fit.expected(256)) == pytest.approx((slope, expected), abs=1e-6)


@pytest.mark.parametrize("widths", [(32, 32), (32, 64)])
def test_fewer_than_three_widths_know_no_drift(widths: tuple[float, float]) -> None:
    fit = fit_edges([(widths[0], Edge(0.1, 0.2)), (widths[1], Edge(0.4, 0.8))])
    assert fit is not None
    assert (fit.likely, fit.widths) == (fit.cautious, len(set(widths)))
    assert fit.likely.slope == 0.0
    assert fit.expected(999) == pytest.approx(0.1)
    assert fit_edges([]) is None


def test_edges_known_from_one_side_are_left_out() -> None:
    assert fit_edges([(16, Edge(None, 0.1)), (32, Edge(0.8, None))]) is None
    fit = fit_edges([(16, Edge(0.1, 0.2)), (32, Edge(0.1, 0.2)), (64, Edge(0.8, None))])
    assert fit is not None
    assert fit.widths == 2


def test_the_safe_edge_is_never_above_the_rates_that_were_stable_carried_on() -> None:
    fit = fit_edges((width, Edge(lr, 2 * lr)) for width, lr in ((16, 0.16), (32, 0.08), (64, 0.04)))
    assert fit is not None
    assert fit.cautious.slope == pytest.approx(-1.0)
    assert fit.safe(256) == pytest.approx(0.01)
    assert fit.expected(256) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("edge", "said"),
    [
        (Edge(0.1, 0.2), "0.1 (0.2 failed)"),
        (Edge(0.1, None), "0.1 or beyond: the grid ends there"),
        (Edge(None, 0.1), "below the grid (0.1 failed)"),
        (Edge(None, None), "below the grid"),
    ],
)
def test_an_edge_in_words(edge: Edge, said: str) -> None:
    assert edge.label == said


@pytest.mark.parametrize(
    ("one", "other", "steps"),
    [
        (0.11, 0.39, 1),
        (0.4, 0.4, 0),
        (0.8, 5.0, 2),
        (0.1, 0.024, 3),
        (0.1, 0.025, 2),
        (0.03, 12.0, 8),
        (0.1999, 0.2, 1),
    ],
)
def test_distance_is_counted_between_the_points_that_are_reached(one: float, other: float, steps: int) -> None:
    grid = [0.1, 0.2, 0.4, 0.8]
    assert grid_steps_apart(one, other, grid) == steps
    assert grid_steps_apart(other, one, grid) == steps
