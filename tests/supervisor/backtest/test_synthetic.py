"""Made-up curves are as they say."""

from __future__ import annotations

import math
import statistics

import pytest

from stormsail.supervisor.backtest.curve import Point
from stormsail.supervisor.backtest.synthetic import FORMS, Trouble, calm_before, healthy, nature_of, troubled


def test_a_seed_always_gives_the_same_curve_and_another_seed_another() -> None:
    assert healthy(3, 50) == healthy(3, 50)
    assert healthy(3, 50).points != healthy(4, 50).points


def test_natures_differ_in_what_must_stay_silent() -> None:
    natures = [nature_of(seed) for seed in range(24)]
    assert any(nature.period for nature in natures)
    assert any(nature.restart_every for nature in natures)
    assert any(nature.quantum for nature in natures)
    assert max(nature.noise for nature in natures) > 4 * min(nature.noise for nature in natures)


def test_rows_lie_as_far_apart_as_asked_and_may_lack_norms() -> None:
    curve = healthy(1, 10, stride=20, norms=False)
    assert [point.step for point in curve.points] == list(range(0, 200, 20))
    assert not curve.has_norm


@pytest.mark.parametrize("kind", list(FORMS))
def test_trouble_leaves_everything_before_it_alone(kind: str) -> None:
    calm = healthy(6, 400)
    curve, label = troubled(6, 400, Trouble(kind, 300, 1.0, 20.0))
    assert curve.points[:300] == calm.points[:300]
    assert label.series == curve.name
    assert 300 <= label.start <= label.end
    risen = max(b.loss - a.loss for a, b in zip(calm.points[300:], curve.points[300:], strict=True))
    assert 0.2 < risen < 5.5


def test_a_slow_rise_has_begun_when_it_is_a_quarter_of_a_nat() -> None:
    _, label = troubled(6, 3000, Trouble("slow_divergence", 1500, 1.0, 800.0))
    assert 1500 + 200 < label.start < 1500 + 800


def test_a_calm_context_leads_up_to_the_first_row_at_its_level() -> None:
    rows = [Point(31214, 2.2, 0.24), Point(31215, 2.25, 0.9)]
    before = calm_before(rows, 300)
    assert [point.step for point in before] == list(range(31214 - 300, 31214))
    assert statistics.median(point.loss for point in before) == pytest.approx(2.2, abs=0.01)
    assert statistics.median(point.grad_norm or 0.0 for point in before) == pytest.approx(0.24, abs=0.02)
    assert before == calm_before(rows, 300)


def test_nothing_calm_can_be_put_before_nan() -> None:
    assert calm_before([Point(1, math.nan)], 300) == ()
    assert calm_before([Point(1, 3.0)], 0) == ()
