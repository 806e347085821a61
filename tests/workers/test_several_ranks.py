"""What only several ranks can show: one decision for all, whoever sees the trouble (gloo, no Ray)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.rank_processes import Job, Told, run_world

from stormsail.platform.messages import FaultKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLOW_STEPS = 34
STALLED = 8


def nonfinite(*faults: tuple[int, int]) -> list[dict[str, object]]:
    return [{"kind": "nonfinite", "rank": rank, "step": step} for rank, step in faults]


@pytest.fixture(scope="module")
def two(built_extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Two ranks: a bad gradient on each in turn, and then rank 1 alone goes astray."""
    job = Job(
        8,
        {
            "drill": {"faults": nonfinite((0, 2), (1, 4))},
            "train": {"steps": 8, "global_batch": 4, "micro_batch": 2},
            "detect": {"sample_every": 3, "budget": 1.0},
        },
        astray=(1, 7),
    )
    return run_world(job, 2, home=tmp_path_factory.mktemp("two"), extensions=built_extensions)


@pytest.fixture(scope="module")
def four(built_extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Four ranks: a bad gradient on each in turn, rank 2 slow throughout, rank 1 stalling once, rank 3 astray."""
    job = Job(
        SLOW_STEPS + 1,
        {
            "drill": {"faults": nonfinite((0, 1), (1, 3), (2, 5), (3, 7))},
            "train": {"steps": SLOW_STEPS + 1, "global_batch": 8, "micro_batch": 2},
            "detect": {"ranks": {"slow_share": 0.4}},  # a busy machine makes others slow now and then
        },
        astray=(3, SLOW_STEPS),
        slow=(2, 0.25),
        stall=(1, STALLED, 6.0),
    )
    return run_world(job, 4, home=tmp_path_factory.mktemp("four"), extensions=built_extensions)


@pytest.mark.parametrize("world", ["two", "four"])
class TestNonFinite:
    def test_it_is_seen_in_that_step_whichever_rank_has_it(self, world: str, request: pytest.FixtureRequest) -> None:
        told: list[Told] = request.getfixturevalue(world)
        dropped = {row.step for row in told[0].rows if row.outcome == "dropped"}
        bad = {"two": {2: 0, 4: 1}, "four": {1: 0, 3: 1, 5: 2, 7: 3}}[world]
        assert dropped == set(bad)
        named = {fields["step"]: fields["rank"] for kind, fields in told[0].lines if kind == "update.dropped"}
        assert named == bad

    def test_it_is_never_applied_on_any_rank(self, world: str, request: pytest.FixtureRequest) -> None:
        told: list[Told] = request.getfixturevalue(world)
        outcomes = [row.outcome for row in told[0].rows]
        for rank in told:
            assert [moved for moved, _ in zip(rank.moved, outcomes, strict=False)] == [
                outcome == "applied" for outcome in outcomes
            ]
            assert all(rank.finite)


@pytest.mark.parametrize("world", ["two", "four"])
def test_a_rank_that_goes_astray_stops_the_update_on_all(world: str, request: pytest.FixtureRequest) -> None:
    told: list[Told] = request.getfixturevalue(world)
    incidents = [incident for rank in told for incident in rank.incidents]
    assert [incident.kind for incident in incidents] == [FaultKind.DESYNC]
    assert incidents[0].evidence["ranks"] == ([0, 1] if world == "two" else [3])
    assert incidents[0].evidence["fields"] == "rates"
    assert [rank.moved[-1] for rank in told] == [False] * len(told)


def test_rows_carry_samples_at_the_steps_that_were_agreed_on(two: list[Told]) -> None:
    sampled = [row.step for row in two[0].rows if "accuracy.tokens" in row.values]
    assert sampled == [0, 3, 6]
    row = two[0].rows[6]
    assert set(row.ranks) == {"loss", "shard_norm", "data_s", "compute_s", "comm_s", "wait_s"}
    assert all(len(values) == 2 for values in row.ranks.values())
    assert row.values["update.rms"] > 0.0


def test_the_slow_rank_is_named_and_a_single_stall_is_only_noted(four: list[Told]) -> None:
    slow = [fields["rank"] for kind, fields in four[0].lines if kind == "rank.slow"]
    assert slow == [2]
    stalled = [(fields["rank"], fields["step"]) for kind, fields in four[0].lines if kind == "rank.stalled"]
    assert (1, STALLED) in stalled
