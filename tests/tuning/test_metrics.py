"""The figures of one trial."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.tuning.metrics import (
    Course,
    divergence,
    divergence_score,
    figures_of,
    final_loss,
    quantile,
    spike_score,
    thinned,
)

LOSSES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=60)
DESCENT = [5.0 - 0.02 * step for step in range(100)]


def course(losses: list[float]) -> Course:
    return Course(
        loss=losses,
        norm=[1.0] * len(losses),
        clipped=[False] * len(losses),
        update_rms=[0.5] * len(losses),
        flagged=[False] * len(losses),
    )


@given(LOSSES)
def test_no_figure_is_ever_nan(losses: list[float]) -> None:
    for value in asdict(figures_of(course(losses), steps=len(losses))).values():
        assert not (isinstance(value, float) and math.isnan(value))
    json.dumps(asdict(figures_of(course(losses), steps=len(losses))), allow_nan=False)


@given(LOSSES)
def test_the_early_stop_never_touches_what_is_stable(losses: list[float]) -> None:
    score = divergence_score(losses)
    assert 0.0 <= score <= 1e6
    assert score == 0.0 or divergence(losses) is not None


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (DESCENT, None),
        ([*DESCENT[:40], math.nan, *DESCENT[40:]], "non-finite loss at step 40"),
        ([*DESCENT, *[4.0] * 10], "above its own minimum"),
        ([*DESCENT[:50], *[6.0] * 6, *[4.2] * 20], "never regained"),
        ([*DESCENT[:50], *[6.0] * 6, *DESCENT[50:]], None),
        ([*DESCENT[:50], 9.0, *DESCENT[50:]], None),
        ([3.0] * 10 + [3.2] * 90, "above where it began"),
        ([3.0] * 10 + [3.04] * 90, None),
    ],
)
def test_divergence_is_seen_by_its_course(losses: list[float], said: str | None) -> None:
    found = divergence(losses)
    assert (found is None) == (said is None)
    assert said is None or (found is not None and said in found.reason)


def test_a_spike_that_heals_itself_is_not_ended_at_a_rung_and_one_that_stays_is() -> None:
    spiked = [*DESCENT[:60], *[6.0] * 6]
    assert divergence_score(spiked) == 0.0
    assert divergence([*spiked, *DESCENT[60:]]) is None
    assert divergence_score([*DESCENT[:60], *[6.0] * 12]) > 0.0


def test_a_trial_that_was_ended_for_its_numbers_diverged() -> None:
    assert figures_of(course(DESCENT), steps=100, stopped="weights are not finite").diverged == "weights are not finite"


def test_a_trial_that_was_ended_early_has_no_final_loss() -> None:
    assert figures_of(course(DESCENT), steps=100).final_loss is not None
    assert figures_of(course(DESCENT), steps=101).final_loss is None
    assert figures_of(course(DESCENT), steps=100, stopped="the ladder was used up").final_loss is None


def test_a_trial_that_could_have_been_ended_counts_as_one_that_was() -> None:
    lucky = course(DESCENT)
    lucky.condemned = 40
    figures = figures_of(lucky, steps=100)
    assert figures.final_loss is None
    assert (figures.diverged_step, figures.diverged) == (39, "loss stood half a nat above its own minimum at step 39")


def test_no_figure_knows_what_a_trial_did_after_it_could_have_been_ended() -> None:
    whole = Course(
        loss=[4.0] * 20 + [2.0] * 20 + [3.0] * 30 + [9.0, math.nan] * 15,
        norm=[1.0] * 60 + [50.0, math.inf] * 20,
        clipped=[False] * 60 + [True] * 40,
        update_rms=[0.5] * 60 + [7.0] * 40,
        flagged=[False] * 60 + [True] * 40,
        incidents=[45, 60, 80],
        logits=[(40, 3.0), (60, 90.0)],
        condemned=60,
    )
    ended = Course(
        whole.loss[:60],
        whole.norm[:60],
        whole.clipped[:60],
        whole.update_rms[:60],
        whole.flagged[:60],
        [45],
        [(40, 3.0)],
        60,
    )
    assert figures_of(whole, steps=100, stopped="weights are not finite") == figures_of(ended, steps=100)
    assert figures_of(ended, steps=100).steps == 60


def test_the_final_loss_is_the_mean_of_the_last_tenth() -> None:
    assert final_loss([9.0] * 18 + [2.0, 4.0]) == 3.0
    assert final_loss([1.0, math.inf]) is None
    assert final_loss([]) is None


def test_one_high_value_among_many_is_a_spike() -> None:
    calm = [2.0 + 0.01 * (step % 3) for step in range(99)]
    assert spike_score([*calm, 5.0]) == pytest.approx(1 / 80)
    assert spike_score(calm) == 0.0
    assert spike_score([math.nan]) == 1.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_a_quantile_lies_among_the_values(values: list[float], share: float) -> None:
    assert min(values) <= quantile(values, share) <= max(values)


@given(st.lists(st.floats(-10, 10), max_size=300))
def test_a_thinned_curve_keeps_its_ends(losses: list[float]) -> None:
    points = thinned(losses)
    assert len(points) == min(len(losses), 64)
    if losses:
        assert points[0] == (0, losses[0])
        assert points[-1] == (len(losses) - 1, losses[-1])
