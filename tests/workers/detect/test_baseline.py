"""The running baseline of one signal."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.workers.detect.baseline import LEVEL_STEPS, Baseline


def _fed(values: list[float], window: int = 256) -> Baseline:
    baseline = Baseline()
    for value in values:
        baseline = baseline.accept(value, window)
    return baseline


def test_nothing_is_unusual_before_there_is_a_past() -> None:
    assert Baseline().z(1e9, 0.1) == 0.0
    assert Baseline().accept(1.0, 256).z(1e9, 0.1) == 0.0


def test_the_level_is_the_median_of_the_recent_values() -> None:
    assert _fed([9.0] * 50 + [1.0, 2.0, 3.0] * 8).level == 2.0


def test_a_z_score_counts_standard_deviations_of_normal_scatter() -> None:
    noise = random.Random(1)
    baseline = _fed([5.0 + noise.gauss(0, 0.1) for _ in range(300)])
    assert baseline.z(baseline.level + 0.6, 1e-6) == pytest.approx(6.0, rel=0.25)
    assert baseline.z(baseline.level - 0.6, 1e-6) == pytest.approx(-6.0, rel=0.25)


def test_a_perfectly_flat_signal_is_judged_by_the_floor() -> None:
    assert _fed([2.0] * 100).z(2.05, 0.01) == pytest.approx(5.0)


def test_a_descent_that_stops_is_not_a_rise() -> None:
    noise = random.Random(2)
    falling = [10.0 - 0.05 * step + noise.gauss(0, 0.01) for step in range(100)]
    assert _fed(falling).z(falling[-1], 1e-6) < 0


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.integers(1, 20))
def test_memory_is_bounded(values: list[float], window: int) -> None:
    baseline = _fed(values, window)
    assert len(baseline.recent) <= LEVEL_STEPS
    assert len(baseline.residuals) <= window
