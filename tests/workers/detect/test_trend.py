"""The robust forecast."""

from __future__ import annotations

import random

import pytest

from stormsail.workers.detect.trend import AHEAD, forecast


def test_a_level_is_carried_on() -> None:
    noise = random.Random(1)
    bands = forecast([3.0 + noise.gauss(0.0, 0.05) for _ in range(64)])
    assert len(bands) == AHEAD
    assert all(mean == pytest.approx(3.0, abs=0.05) for mean, _ in bands)
    assert all(0.02 < sigma < 0.12 for _, sigma in bands)


def test_a_descent_goes_on_ever_more_slowly() -> None:
    means = [mean for mean, _ in forecast([5.0 - 0.02 * step for step in range(64)])]
    assert means == sorted(means, reverse=True)
    assert means[0] - means[1] > means[-2] - means[-1]
    assert means[0] == pytest.approx(5.0 - 0.02 * 64, abs=0.04)


def test_one_outlier_moves_it_little() -> None:
    calm = [3.0 + 0.01 * (step % 5) for step in range(64)]
    (before, _), *_ = forecast(calm)
    (after, _), *_ = forecast([*calm[:-2], 9.0, calm[-1]])
    assert after == pytest.approx(before, abs=0.02)


def test_a_band_is_never_narrower_than_healthy_scatter() -> None:
    assert forecast([2.0] * 64)[0] == pytest.approx((2.0, 0.008))


def test_of_too_few_losses_nothing_is_said() -> None:
    assert forecast([3.0] * 31) == ()
