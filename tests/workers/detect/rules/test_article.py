"""The articles' rules do what they say, with what is wrong with them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import after, calm, findings

from stormsail.workers.detect.rules.article import (
    FiveTimesBest,
    NormThousand,
    SigmaSpike,
    SigmaSpikeExcluded,
    ThreeTimesAverage,
)
from stormsail.workers.detect.rules.row import Row


@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=100), st.floats(-1e9, 1e9))
def test_ten_sigma_with_the_value_in_its_own_window_never_fires(losses: list[float], last: float) -> None:
    rows = [Row(step, loss) for step, loss in enumerate([*losses, last])]
    assert not findings(SigmaSpike(), rows)


def test_with_the_value_left_out_it_can_fire() -> None:
    rows = calm()
    assert findings(SigmaSpikeExcluded(), rows + after(rows, (9.0, 0.3))).keys() == {200}


def test_five_times_the_best_misses_a_real_spike() -> None:
    rows = calm()
    assert not findings(FiveTimesBest(), rows + after(rows, (9.3, 100.0)))  # 3.1 times
    assert findings(FiveTimesBest(), rows + after(rows, (16.0, 100.0))).keys() == {200}


def test_three_times_the_average_or_a_norm_above_five() -> None:
    rows = calm()
    said = findings(ThreeTimesAverage(), rows + after(rows, (8.0, 0.3), (9.5, 0.3), (3.0, 5.5)))
    assert said.keys() == {201, 202}


def test_the_average_takes_in_the_spike_itself() -> None:
    rows = calm()
    said = findings(ThreeTimesAverage(), rows + after(rows, *[(9.5, 0.3)] * 200))
    assert 0 < len(said) < 20  # after that the spike is what is normal


def test_a_thousand_times_the_norm_misses_the_worst_that_was_published() -> None:
    rows = calm(norm=0.2)
    assert not findings(NormThousand(), rows + after(rows, (5.1, 960.0)))
    assert findings(NormThousand(), rows + after(rows, (5.1, 1200.0))).keys() == {200}


def test_nan_reads_as_normal() -> None:
    rows = calm()
    for rule in (SigmaSpike(), FiveTimesBest(), ThreeTimesAverage(), NormThousand()):
        assert not findings(rule, rows + after(rows, (math.nan, math.nan)))
