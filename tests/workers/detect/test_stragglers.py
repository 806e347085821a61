"""Who is slow."""

from __future__ import annotations

import pytest

from stormsail.platform.config.detect import RanksLimits
from stormsail.workers.detect.beside import Stall
from stormsail.workers.detect.stragglers import Slowness, read_slowness

LIMITS = RanksLimits()


def read_all(steps: list[list[float]]) -> list[Slowness]:
    shares: tuple[float, ...] = ()
    found = []
    for own_s in steps:
        shares, slowness = read_slowness(shares, own_s, LIMITS, Stall())
        found.append(slowness)
    return found


def test_a_rank_that_is_slow_in_most_steps_is_a_straggler() -> None:
    found = read_all([[0.1, 0.1, 0.15 if step % 5 else 0.1, 0.1] for step in range(60)])
    assert not found[10].straggler
    assert (found[58].straggler, found[58].rank) == (True, 2)
    assert found[58].ratio == pytest.approx(1.5)


def test_a_single_stall_is_none_but_noted() -> None:
    found = read_all([[0.1, 2.1 if step == 30 else 0.1, 0.1, 0.1] for step in range(60)])
    assert not any(one.straggler for one in found)
    assert found[30].rank == 1
    assert found[30].stalled_s == pytest.approx(2.0)
    assert all(one.stalled_s == 0.0 for one in found[31:])


def test_a_stall_is_that_of_its_rank_though_another_one_is_the_straggler() -> None:
    found = read_all([[0.1, 2.1 if step == 50 else 0.1, 0.15, 0.1] for step in range(60)])
    assert (found[50].straggler, found[50].rank) == (True, 2)
    assert found[50].stalled_rank == 1
    assert found[50].stalled_ratio == pytest.approx(21.0)
    assert found[50].stalled_s == pytest.approx(2.0)
    assert found[51].stalled_rank == -1


def test_a_straggler_that_recovers_is_none_any_more() -> None:
    found = read_all([[0.1, 0.3]] * 60 + [[0.1, 0.1]] * 40)
    assert found[59].straggler
    assert not found[-1].straggler


def test_two_ranks_are_compared_with_each_other() -> None:
    assert read_all([[0.1, 0.2]])[0].ratio == pytest.approx(2.0)


def test_a_large_world_is_compared_with_its_median() -> None:
    found = read_all([[0.1] * 99 + [0.4]])[0]
    assert found.rank == 99
    assert found.ratio == pytest.approx(4.0)


@pytest.mark.parametrize("own_s", [[], [0.1], [0.1, 0.0]])
def test_without_others_or_times_nobody_is_slow(own_s: list[float]) -> None:
    assert read_all([own_s]) == [Slowness()]


def test_what_is_worth_a_note_is_a_setting() -> None:
    own_s = [0.1, 0.25, 0.1]
    assert read_slowness((), own_s, LIMITS, Stall())[1].stalled_s == 0.0
    assert read_slowness((), own_s, LIMITS, Stall(ratio=2.0, seconds=0.1))[1].stalled_s == pytest.approx(0.15)
