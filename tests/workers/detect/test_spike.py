"""The spike rule alone: which steps are flagged, and what the baselines learn."""

from __future__ import annotations

import math
import random

import pytest

from stormsail.workers.detect.spike import Reading, SpikeLimits, SpikeState, advance, is_incident, read

POLICY = SpikeLimits()


def _calm(steps: int = 200, seed: int = 0) -> SpikeState:
    noise = random.Random(seed)
    state = SpikeState()
    for step in range(steps):
        state, _ = _step(state, step, 3.0 + noise.gauss(0, 0.03), math.exp(noise.gauss(0, 0.09)))
    return state


def _step(state: SpikeState, step: int, loss: float, norm: float) -> tuple[SpikeState, Reading]:
    reading = read(state, step, loss, norm, POLICY)
    return advance(state, reading, POLICY), reading


def test_nothing_is_flagged_during_warm_up() -> None:
    state = SpikeState()
    for step in range(POLICY.warmup_steps):
        state, reading = _step(state, step, 1000.0 if step == 10 else 3.0, 1e6 if step == 10 else 1.0)
        assert not reading.flagged


def test_a_high_loss_is_flagged_and_a_low_one_is_not() -> None:
    state = _calm()
    assert _step(state, 200, 4.0, 1.0)[1].loss_flagged
    assert not _step(state, 200, 1.0, 1.0)[1].flagged


def test_a_norm_needs_both_the_score_and_three_times_the_median() -> None:
    state = _calm()
    assert not _step(state, 200, 3.0, 2.8)[1].flagged
    assert _step(state, 200, 3.0, 3.5)[1].norm_flagged


@pytest.mark.parametrize(("loss", "norm"), [(9.0, 1.0), (3.0, 50.0)], ids=["loss", "norm"])
def test_flagged_values_never_enter_the_baselines(loss: float, norm: float) -> None:
    before = _calm()
    after = before
    for step in range(200, 204):
        after, reading = _step(after, step, loss, norm)
        assert reading.flagged
    assert (after.loss, after.norm, after.accepted) == (before.loss, before.norm, before.accepted)


def test_severe_is_a_loss_far_out_or_a_norm_ten_times_its_median() -> None:
    state = _calm()
    assert not _step(state, 200, 3.28, 5.0)[1].severe
    assert _step(state, 200, 5.0, 1.0)[1].severe
    assert _step(state, 200, 3.0, 12.0)[1].severe


def test_a_run_of_flags_ends_after_a_whole_calm_window() -> None:
    state, _ = _step(_calm(), 200, 9.0, 1.0)
    for step in range(201, 205):
        state, _ = _step(state, step, 3.0, 1.0)
        assert state.onset == 200
    state, _ = _step(state, 205, 3.0, 1.0)
    assert (state.onset, state.persistent, state.peak_z) == (-1, -1, 0.0)


def test_a_norm_that_stays_at_a_new_level_becomes_the_baseline_after_the_grace() -> None:
    state = _calm()
    flagged = []
    for step in range(200, 300):
        state, reading = _step(state, step, 3.0, 5.0)
        flagged.append(reading.flagged)
        assert not is_incident(state, reading, POLICY)
    assert flagged == [True] * (POLICY.grace_steps + 1) + [False] * (99 - POLICY.grace_steps)
    assert _step(state, 300, 3.0, 60.0)[1].norm_flagged


def test_a_norm_of_zero_and_one_beyond_all_floats_are_survived() -> None:
    state = SpikeState()
    for step in range(40):
        state, _ = _step(state, step, 3.0, 0.0)
    assert math.isfinite(_step(state, 40, 3.0, 1e300)[1].norm_ratio)


def test_a_spike_that_was_severe_for_long_enough_gets_no_grace_when_it_eases() -> None:
    state = _calm()
    found = []
    for step, loss in enumerate([9.0, 6.0, 5.0, 3.26], start=200):
        state, reading = _step(state, step, loss, 1.0)
        found.append((reading.severe, is_incident(state, reading, POLICY)))
    assert found == [(True, False), (True, False), (True, False), (False, True)]


def test_one_severe_step_does_not_take_the_grace_from_a_mild_rest() -> None:
    state = _calm()
    for step, loss in enumerate([9.0, 3.26, 3.26, 3.26, 3.26], start=200):
        state, reading = _step(state, step, loss, 1.0)
        assert reading.flagged
        assert not is_incident(state, reading, POLICY)
