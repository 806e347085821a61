"""A replay on two ranks: they stay together, and a rank that is not what it was stops all of them (gloo, no Ray)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.rank_processes import Job, Told, run_world

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ONSET = 16
JOB = {
    "drill": {"faults": [{"kind": "nonfinite", "rank": 1, "step": ONSET, "steps": 30}]},
    "train": {"steps": 40, "global_batch": 4, "micro_batch": 2},
}


@pytest.fixture(scope="module")
def told(built_extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """A replay that breaks off, one of an incident, and a last one in which rank 1 forgets what it parked."""
    job = Job(20, JOB, replay=True, breaks=True, forgets=1)
    return run_world(job, 2, home=tmp_path_factory.mktemp("replays"), extensions=built_extensions)


def test_a_replay_that_breaks_off_on_all_ranks_is_a_reason_on_each_and_moves_nothing(told: list[Told]) -> None:
    # What each rank held before and after is compared where it happens.
    assert [one.broken for one in told] == [f"it broke off: MemoryError: rank {rank} has no room" for rank in range(2)]


def test_all_ranks_come_through_and_their_state_is_what_it_was(told: list[Told]) -> None:
    first, second = told
    (result,) = first.results
    recorded = [(row.loss, row.grad_norm) for row in first.rows[:ONSET]]
    again = [(row.loss, row.grad_norm) for row in (*result.prefix, *result.outcomes[0].rows)]
    assert again[:ONSET] == recorded
    assert result.problem == ""
    # Dropped updates moved nothing, and neither did the replay of the step with the incident.
    assert first.moved[ONSET:] == second.moved[ONSET:] == [False] * (len(first.moved) - ONSET)


def test_a_rank_that_differs_is_named_on_all(told: list[Told]) -> None:
    errors = [one.error for one in told]
    assert errors[0] == errors[1]
    assert "the state of rank 1 is not what it was" in errors[0]
