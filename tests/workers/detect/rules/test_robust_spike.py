"""The default rule over the rows of a log."""

from __future__ import annotations

import math

import pytest
from tests.support.rows import after, calm, findings

from stormsail.workers.detect.rules.robust_spike import RobustSpike
from stormsail.workers.detect.rules.row import Level, Row
from stormsail.workers.detect.spike import SpikeLimits


def incidents(rows: list[Row], rule: RobustSpike | None = None) -> list[int]:
    return [step for step, said in findings(rule or RobustSpike(), rows).items() if said.level is Level.INCIDENT]


def test_its_thresholds_are_those_of_the_rule_inside() -> None:
    assert RobustSpike().limits(1) == SpikeLimits()


def test_one_outlier_is_a_watch() -> None:
    rows = calm()
    said = findings(RobustSpike(), rows + after(rows, (4.5, 0.3), (3.0, 0.3), (3.0, 0.3)))
    assert {step: one.level for step, one in said.items()} == {200: Level.WATCH}


def test_a_norm_alone_is_not_reported_here() -> None:
    rows = calm()
    assert not findings(RobustSpike(), rows + after(rows, (3.0, 1.5)))


def test_a_log_without_norms_is_judged_by_its_loss() -> None:
    rows = calm(norm=None)
    assert incidents(rows + after(rows, *[(6.0, None)] * 5)) == [203, 204]


def test_a_mild_rise_gets_its_grace_and_then_is_an_incident() -> None:
    rows = calm()
    assert incidents(rows + after(rows, *[(3.27, 0.3)] * 60))[0] == 200 + 2 + 20


def test_a_rise_that_matters_to_nobody_is_none() -> None:
    rows = [Row(row.step, 3.0 + (row.loss - 3.0) / 100, row.grad_norm) for row in calm()]
    assert not incidents(rows + after(rows, *[(3.09, 0.3)] * 60))


def test_rows_far_apart_need_fewer_flags() -> None:
    rows = calm(stride=50)
    assert incidents(rows + after(rows, (5.0, 3.0), (5.0, 3.0), (5.0, 3.0)))[0] == rows[-1].step + 150


def test_a_level_that_stays_becomes_normal_and_the_next_spike_is_seen() -> None:
    rows = calm()
    rows += after(rows, *[(row.loss + 1.0, 0.3) for row in calm(400)])
    before = incidents(rows)
    assert before
    assert before[-1] < 420
    assert incidents(rows + after(rows, *[(6.0, 0.3)] * 5))[-1] > 600


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_is_no_number_is_left_to_another_rule(loss: float) -> None:
    rows = calm()
    assert not findings(RobustSpike(), rows + after(rows, (loss, 0.3)))
