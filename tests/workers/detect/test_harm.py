"""How ill a step is, and which samples stand out."""

from __future__ import annotations

import math

import pytest
from tests.support.scripted_run import calm

from stormsail.platform.diagnosis import SampleScore
from stormsail.workers.detect.harm import harm, healed, outliers, suspects_of
from stormsail.workers.detect.signs import Limits, limits_of


@pytest.fixture
def limits() -> Limits:
    found = limits_of([calm(step) for step in range(40)])
    assert found is not None
    return found


def test_a_calm_step_does_no_harm(limits: Limits) -> None:
    assert harm(calm(40), 2.0, limits) == 0.0


def test_a_hard_batch_does_no_harm_but_one_that_became_hard_does(limits: Limits) -> None:
    assert harm(calm(40, loss=2.04), 2.04, limits) == 0.0
    assert harm(calm(40, loss=2.04), 1.9, limits) > 0.5


@pytest.mark.parametrize("changes", [{"grad_norm": 20.0}, {"update_rms": 0.8}, {"zero_share": 0.3}, {"loss": 1.0}])
def test_other_signs_are_harm_too(limits: Limits, changes: dict[str, object]) -> None:
    assert harm(calm(40, **changes), 2.0, limits) > 0.5


def test_what_is_not_finite_is_the_worst(limits: Limits) -> None:
    assert harm(calm(40, loss=math.nan), 2.0, limits) == 10.0


def test_healing_is_the_share_of_harm_that_is_gone() -> None:
    assert healed((1.0, 3.0), (0.0, 1.0)) == 0.75
    assert healed((1.0, 3.0), (0.5,)) == 0.5
    assert healed((0.0,), (0.0,)) == 0.0


def scores(step: int, *losses: float) -> list[SampleScore]:
    return [SampleScore(step, step * 4 + place, loss) for place, loss in enumerate(losses)]


# Robust deviation 0.3: the median distance from 2.0 is 0.2.
CALM = [*scores(0, 2.0, 2.2, 1.8, 2.1), *scores(1, 1.9, 2.0, 2.3, 1.7)]


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ((2.0, 2.1, 1.9, 2.2), False),
        ((2.0, 2.1, 1.9, 5.0), True),
        ((2.0, 2.1, 3.2, 3.2), True),
        ((2.9, 2.9, 2.9, 2.9), True),
        ((0.5, 0.4, 2.0, 2.0), True),
        ((2.0, 2.0, 2.0, math.nan), True),
    ],
)
def test_a_batch_stands_out_by_its_mean_or_by_its_samples(batch: tuple[float, ...], found: bool) -> None:
    assert bool(suspects_of([*CALM, *scores(2, *batch)], 2)) is found


def test_the_whole_batch_is_suspected_and_its_strange_samples_are_named() -> None:
    all_scores = [*CALM, *scores(2, 2.0, 2.1, 1.9, 5.0)]
    assert len(suspects_of(all_scores, 2)) == 4
    assert [score.position for score in outliers(all_scores, 2)] == [11]


def test_without_calm_samples_nobody_is_suspected() -> None:
    assert suspects_of(scores(2, 9.0, 9.0), 2) == ()
