"""Who is slow."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stormsail.platform.config.detect import RanksLimits
from stormsail.workers.detect.beside import Stall
from stormsail.workers.detect.stragglers import Slowness, read_slowness

LIMITS = RanksLimits()


def read_all(steps: list[list[float]]) -> list[Slowness]:
    known: tuple[float, ...] = ()
    found = []
    for own_s in steps:
        known, slowness = read_slowness(known, own_s, LIMITS, Stall())
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


def jitter(draw: random.Random) -> float:
    return draw.lognormvariate(0.0, 0.1)


def stalls(draw: random.Random) -> float:
    return draw.lognormvariate(0.0, 0.05) * (5.0 if draw.random() < 0.05 else 1.0)


def noisy(
    seed: int, steps: int, ranks: int, noise: Callable[[random.Random], float], slower: float = 0.0
) -> list[list[float]]:
    """Steps of 0.4 s with noise; rank 2 takes that much longer in each, in seconds."""
    draw = random.Random(seed)
    return [[0.4 * noise(draw) + slower * (rank == 2) for rank in range(ranks)] for _ in range(steps)]


@pytest.mark.parametrize("noise", [jitter, stalls])
def test_a_rank_that_is_a_little_slow_in_every_step_is_named_and_noise_is_not(
    noise: Callable[[random.Random], float],
) -> None:
    for seed in range(2):
        found = read_all(noisy(seed, 600, 4, noise, slower=0.05))
        assert not any(one.straggler for one in found[:199])
        named = {one.rank for one in found if one.straggler}
        assert named == {2}
        assert [one.ratio for one in found if one.straggler][-1] == pytest.approx(1.125, abs=0.03)
        assert not any(one.straggler for one in read_all(noisy(seed, 1500, 4, noise)))


def test_noise_that_lasts_for_some_steps_names_nobody() -> None:
    draw, own, steps = random.Random(7), [0.0] * 3, []
    for _ in range(2000):
        own = [0.8 * value + draw.gauss(0.0, 0.05) for value in own]
        steps.append([0.4 * (1.0 + max(value, -0.9)) for value in own])
    assert not any(one.straggler for one in read_all(steps))


def test_a_rank_that_was_a_little_slow_and_recovers_is_none_any_more() -> None:
    found = read_all([[0.4, 0.4, 0.47]] * 300 + [[0.4, 0.4, 0.4]] * 60)
    assert found[299].straggler
    assert not found[-1].straggler


def test_a_difference_that_costs_less_than_a_tenth_is_nobody_s_fault() -> None:
    assert not any(one.straggler for one in read_all([[0.4, 0.4, 0.43]] * 400))


def test_a_stall_of_two_seconds_in_a_step_of_0_6_is_noted_at_the_shipped_limits() -> None:
    found = read_all([[0.6, 2.6 if step == 30 else 0.6, 0.6, 0.6] for step in range(60)])
    assert (found[30].stalled_rank, found[30].straggler) == (1, False)
    assert found[30].stalled_s == pytest.approx(2.0)
