"""A run that becomes slow as a whole."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.run_kit import step_row

from stormsail.supervisor.watch.throughput import RateChange, Throughput, observe
from stormsail.workers.detect.beside import Throughput as Limits

LIMITS = Limits()


def changes(seconds: Iterable[float], *, tokens: int = 1000, limits: Limits = LIMITS) -> list[RateChange]:
    state, now, found = Throughput(), 1e9, []
    for step, took_s in enumerate(seconds):
        now += took_s
        state, change = observe(state, step_row(step, time_s=now, tokens=tokens), limits)
        if change is not None:
            found.append(change)
    return found


def test_a_steady_run_says_nothing() -> None:
    assert changes([0.2, 0.25, 0.15] * 200) == []


def test_a_collapse_is_said_once_and_so_is_its_end() -> None:
    slow, fine = changes([0.2] * 100 + [0.6] * 300 + [0.2] * 100)
    assert (slow.collapsed, fine.collapsed) == (True, False)
    assert 100 < slow.step <= 120
    assert round(slow.usual_tokens_per_s) == 5000
    assert slow.tokens_per_s < 2500
    assert 400 < fine.step <= 420


def test_what_was_slow_for_long_has_not_become_usual() -> None:
    _, fine = changes([0.2] * 100 + [0.6] * 2000 + [0.2] * 50)
    assert round(fine.usual_tokens_per_s) == 5000


def test_single_stalls_are_no_collapse() -> None:
    assert changes(([0.2] * 19 + [5.0]) * 20) == []


def test_a_slow_start_is_not_judged() -> None:
    assert changes([5.0] * 10 + [0.2] * 200) == []


def test_a_clock_that_is_set_back_is_survived() -> None:
    assert changes([0.2] * 60 + [-100.0] + [0.2] * 100) == []


def test_what_is_slow_is_a_setting() -> None:
    seconds = [0.2] * 100 + [0.3] * 100
    assert changes(seconds) == []
    assert [change.collapsed for change in changes(seconds, limits=Limits(collapsed=0.7, recovered=0.9))] == [True]
    assert changes(seconds, limits=Limits(collapsed=0.7, recovered=0.9, least=500)) == []
