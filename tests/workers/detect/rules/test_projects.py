"""The rules of other projects, by their published constants."""

from __future__ import annotations

import math

import pytest
from tests.support.rows import after, calm, findings

from stormsail.workers.detect.rules.projects import (
    ByteRobustJump,
    ForecastThreeSigma,
    FoundryKillLossSpike,
    MegatronFirstHundred,
    OlmoSkipStep,
    OlmoSkipStepLoss,
    OlmoSpikeScore,
    RobustMonitor,
    ZclipTouch,
)
from stormsail.workers.detect.rules.registry import AnyRule


def test_skip_step_reads_loss_and_norm_and_needs_64_values() -> None:
    rows = calm(200)
    said = findings(OlmoSkipStep(), rows + after(rows, (3.0, 0.6), (3.3, 0.3)))
    assert said.keys() >= {200, 201}
    assert not findings(OlmoSkipStep(), calm(60) + after(calm(60), (9.0, 9.0)))


def test_skip_step_on_the_loss_alone_leaves_the_norm_out() -> None:
    rows = calm(200)
    assert not findings(OlmoSkipStepLoss(), rows + after(rows, (3.0, 90.0)))


def test_the_spike_score_counts_seven_sigma_either_way() -> None:
    rows = calm(200)
    assert findings(OlmoSpikeScore(), rows + after(rows, (3.5, 0.3))).keys() == {200}
    assert findings(OlmoSpikeScore(), rows + after(rows, (2.5, 0.3))).keys() == {200}


def test_kill_loss_spike_waits_for_five_in_a_row() -> None:
    rows = calm(200)
    said = findings(FoundryKillLossSpike(), rows + after(rows, *[(7.0, 0.3)] * 6))
    assert min(said) == 204


def test_kill_loss_spike_sees_half_a_window_above_the_cap() -> None:
    rows = calm(200)
    said = findings(FoundryKillLossSpike(), rows + after(rows, *[(4.0, 0.3)] * 60))
    assert min(said) == 200 + 50


def test_ten_times_the_highest_of_the_first_hundred_needs_the_absurd() -> None:
    rows = calm(200, level=10.9)
    assert not findings(MegatronFirstHundred(), rows + after(rows, (100.0, 0.3)))
    assert findings(MegatronFirstHundred(), rows + after(rows, (120.0, 0.3)))


@pytest.mark.parametrize("rule", [MegatronFirstHundred(), ByteRobustJump()], ids=lambda rule: rule.name)
def test_some_name_what_is_not_finite(rule: AnyRule) -> None:
    rows = calm(200)
    assert findings(rule, rows + after(rows, (math.nan, 0.3), (3.0, math.inf))).keys() == {200, 201}


def test_a_fivefold_jump_of_loss_or_norm() -> None:
    rows = calm(200)
    assert findings(ByteRobustJump(), rows + after(rows, (3.0, 1.6), (3.0, 1.2))).keys() == {200}


def test_the_monitor_takes_a_high_loss_alone_or_both_less_high() -> None:
    rows = calm(200)
    assert findings(RobustMonitor(), rows + after(rows, (3.4, 0.3)))
    assert findings(RobustMonitor(), rows + after(rows, (3.22, 0.9)))
    assert not findings(RobustMonitor(), rows + after(rows, (3.15, 0.3)))


def test_zclip_touches_healthy_steps() -> None:
    touched = findings(ZclipTouch(), calm(3000))
    assert 0.01 < len(touched) / 3000 < 0.1


def test_zclip_is_fed_with_the_clipped_value() -> None:
    rows = calm(200)
    said = findings(ZclipTouch(), rows + after(rows, (3.0, 1e6), (3.0, 1.0)))
    assert said.keys() >= {200, 201}  # a million did not blind it to a threefold norm


def test_the_three_sigma_band_cries_over_noise() -> None:
    assert findings(ForecastThreeSigma(), calm(3000))
