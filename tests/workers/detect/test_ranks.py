"""One rank that leaves the others."""

from __future__ import annotations

import random

import pytest

from stormsail.platform.config.detect import RanksLimits
from stormsail.workers.detect.ranks import RankReading, RankState, read_ranks

LIMITS = RanksLimits()

Step = tuple[list[float], list[float]]


def healthy(steps: int, ranks: int, *, seed: int = 1) -> list[Step]:
    noise = random.Random(seed)
    found = []
    for step in range(steps):
        level = 4.0 - 0.005 * step + noise.gauss(0.0, 0.05)
        losses = [level + noise.gauss(0.0, 0.08) for _ in range(ranks)]
        found.append((losses, [(1.0 + 0.1 * rank) * abs(1.0 + noise.gauss(0.0, 0.05)) for rank in range(ranks)]))
    return found


def read_all(steps: list[Step], *, calm: bool = True) -> tuple[RankState, list[RankReading]]:
    state, found = RankState(), []
    for losses, norms in steps:
        state, reading = read_ranks(state, losses, norms, LIMITS, calm=calm)
        found.append(reading)
    return state, found


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_healthy_ranks_are_never_out_of_their_share_for_long(ranks: int) -> None:
    _, readings = read_all(healthy(1000, ranks))
    assert max(reading.in_row for reading in readings) < LIMITS.watch_steps


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_whose_loss_leaves_the_others_is_named(ranks: int) -> None:
    steps = healthy(200, ranks)
    for losses, _ in steps[150:155]:
        losses[1] += 2.5
    _, readings = read_all(steps)
    assert [(reading.rank, reading.what, reading.in_row) for reading in readings[150:155]] == [
        (1, "loss", count) for count in range(1, 6)
    ]


def test_so_is_one_whose_shard_of_the_gradient_does() -> None:
    steps = healthy(200, 4)
    for _, norms in steps[150:155]:
        norms[2] *= 30.0
    _, readings = read_all(steps)
    assert (readings[154].rank, readings[154].what, readings[154].in_row) == (2, "gradient", 5)


def test_one_bad_sample_is_one_bad_step() -> None:
    steps = healthy(200, 2)
    steps[150][0][0] += 4.0
    _, readings = read_all(steps)
    assert readings[150].in_row == 1
    assert readings[151].in_row == 0


def test_no_rank_is_blamed_while_all_together_are_out_of_the_ordinary() -> None:
    state, readings = read_all(healthy(100, 2), calm=False)
    assert state == RankState()
    assert {reading.rank for reading in readings} == {-1}


def test_what_stays_for_long_is_how_things_are() -> None:
    steps = healthy(900, 2)
    for losses, _ in steps[150:]:
        losses[1] += 2.5
    _, readings = read_all(steps)
    assert readings[200].in_row > 40
    assert readings[-1].in_row == 0


def test_another_world_size_is_begun_anew() -> None:
    state, _ = read_all(healthy(100, 4))
    state, reading = read_ranks(state, [3.0, 9.0], [1.0, 1.0], LIMITS, calm=True)
    assert (reading.rank, len(state.flagged), state.steps) == (-1, 2, 1)


def test_a_single_rank_has_nobody_to_leave() -> None:
    assert read_ranks(RankState(), [3.0], [1.0], LIMITS, calm=True) == (RankState(), RankReading())
