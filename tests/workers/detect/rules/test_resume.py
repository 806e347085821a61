"""The first rows after a restart."""

from __future__ import annotations

import math

import pytest
from tests.support.rows import after, calm, findings

from stormsail.workers.detect.rules.resume import ResumeContinuity
from stormsail.workers.detect.rules.row import Row

LOST_MOMENTS = ((3.02, 0.33), (3.96, 8.5), (3.56, 3.4), (3.47, 1.9), (3.28, 1.3))


def test_lost_optimizer_state_is_seen_at_the_first_step_that_shows_it() -> None:
    rows = calm()
    assert min(findings(ResumeContinuity(), rows + after(rows, *LOST_MOMENTS, restart=True))) == 201


def test_the_same_rows_without_a_restart_are_another_rules_business() -> None:
    rows = calm()
    assert not findings(ResumeContinuity(), rows + after(rows, *LOST_MOMENTS))


def test_a_whole_restart_is_silent() -> None:
    rows = calm()
    assert not findings(ResumeContinuity(), rows + after(rows, *[(3.01, 0.3)] * 30, restart=True))


def test_one_outlier_after_a_restart_is_silent() -> None:
    rows = calm()
    assert not findings(ResumeContinuity(), rows + after(rows, (3.5, 0.5), *[(3.0, 0.3)] * 20, restart=True))


def test_without_norms_a_second_row_must_agree() -> None:
    rows = calm(norm=None)
    assert findings(ResumeContinuity(), rows + after(rows, (4.0, None), (3.8, None), restart=True)).keys() == {201}


def test_judgement_ends_after_some_rows() -> None:
    rows = calm()
    late = after(rows, *[(3.0, 0.3)] * 12, (4.0, 9.0), (4.0, 9.0), restart=True)
    assert not findings(ResumeContinuity(), rows + late)


def decaying(rise: float, factor: float) -> list[Row]:
    return [
        Row(
            19000 + row.step,
            row.loss + rise * math.exp(-row.step / 5.0),
            (row.grad_norm or 0.0) * (1.0 + factor * math.exp(-row.step / 5.0)),
            restart=row.step == 0,
        )
        for row in calm(100)
    ]


def test_a_log_that_begins_in_the_middle_is_judged_in_hindsight() -> None:
    assert findings(ResumeContinuity(), decaying(0.9, 20.0)).keys() == {19029}


@pytest.mark.parametrize(("rise", "factor"), [(0.0, 0.0), (0.9, 0.5), (0.1, 20.0)])
def test_and_needs_both_loss_and_norm(rise: float, factor: float) -> None:
    assert not findings(ResumeContinuity(), decaying(rise, factor))
