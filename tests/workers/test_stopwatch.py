"""Where the time of a step goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stormsail.workers.stopwatch import STEP, Stopwatch


def test_laps_add_up_and_belong_to_the_step_before_once_the_next_begins() -> None:
    watch = Stopwatch()
    watch.begin()
    with watch.lap("compute"):
        pass
    watch.add("compute", 1.0)
    watch.add("compute", -0.25)
    assert watch.lapped("compute") == pytest.approx(0.75, abs=0.05)
    assert watch.before == {}
    watch.begin()
    assert watch.before["compute"] == pytest.approx(0.75, abs=0.05)
    assert watch.before[STEP] > 0.0
    assert watch.lapped("compute") == 0.0


def test_a_lap_counts_though_its_block_raises() -> None:
    watch = Stopwatch()
    watch.begin()
    with pytest.raises(RuntimeError), watch.lap("update"):
        raise RuntimeError
    assert watch.lapped("update") > 0.0


def test_what_is_put_aside_belongs_to_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([10.0, 12.0, 112.0, 115.0])  # begin, aside begun, aside over, begin
    monkeypatch.setattr("stormsail.workers.stopwatch.time", SimpleNamespace(perf_counter=lambda: next(times_s)))
    watch = Stopwatch()
    watch.begin()
    with watch.aside():
        pass
    watch.begin()
    assert watch.before == {STEP: 5.0}


def test_before_the_first_step_nothing_is_put_aside() -> None:
    watch = Stopwatch()
    with watch.aside():
        pass
    watch.begin()
    assert watch.before == {}


def test_after_a_reset_there_was_no_step() -> None:
    watch = Stopwatch()
    watch.begin()
    watch.add("compute", 1.0)
    watch.reset()
    watch.begin()
    assert watch.before == {}
    assert watch.elapsed_s >= 0.0
