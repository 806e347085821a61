"""Figures of a window."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.workers.detect.rules.windows import mean, mean_and_sigma, median, median_and_scatter, push, ratio

values = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40).map(tuple)


@given(values)
def test_median_mean_and_sigma_are_those_of_the_standard_library(window: tuple[float, ...]) -> None:
    assert median(window) == statistics.median(window)
    middle, sigma = mean_and_sigma(window, ddof=1)
    assert middle == pytest.approx(statistics.fmean(window), abs=1e-6)
    assert sigma == pytest.approx(statistics.stdev(window), rel=1e-6, abs=1e-6)


@given(values, st.integers(1, 10))
def test_a_window_keeps_the_last_values(window: tuple[float, ...], size: int) -> None:
    kept = push(window[-size:], 7.0, size)
    assert kept == (*window, 7.0)[-size:] if len(window) >= size else (*window, 7.0)
    assert len(kept) <= size


def test_nothing_has_a_median_and_a_mean_of_zero() -> None:
    assert (median(()), mean(()), mean_and_sigma(())) == (0.0, 0.0, (0.0, 0.0))


def test_one_outlier_hardly_moves_the_robust_scatter() -> None:
    calm = tuple(float(index % 5) for index in range(50))
    _, scatter = median_and_scatter(calm)
    _, with_outlier = median_and_scatter((*calm, 1e9))
    assert with_outlier == pytest.approx(scatter)


@pytest.mark.parametrize(("value", "base", "expected"), [(6.0, 2.0, 3.0), (1.0, 0.0, 1e12), (0.0, 0.0, 0.0)])
def test_a_ratio_is_finite(value: float, base: float, expected: float) -> None:
    assert ratio(value, base) == expected
