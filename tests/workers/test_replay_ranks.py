"""A replay on two ranks: they stay together, and a rank that is not what it was stops all of them (gloo, no Ray)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.rank_processes import Job, Told, run_world

pytestmark = pytest.mark.slow

ONSET = 16
JOB = {
    "drill": {"faults": [{"kind": "nonfinite", "rank": 1, "step": ONSET, "steps": 30}]},
    "train": {"steps": 40, "global_batch": 4, "micro_batch": 2},
}


def run(forgets: int | None, extensions: Path, home: Path) -> list[Told]:
    return run_world(
        Job(20, JOB, replay=True, breaks=forgets is None, forgets=forgets), 2, home=home, extensions=extensions
    )


def test_all_ranks_come_through_one_that_broke_off_too_and_their_state_is_what_it_was(
    built_extensions: Path, tmp_path: Path
) -> None:
    first, second = run(None, built_extensions, tmp_path)
    assert [told.broken for told in (first, second)] == [
        f"it broke off: MemoryError: rank {rank} has no room" for rank in (0, 1)
    ]
    (result,) = first.results
    recorded = [(row.loss, row.grad_norm) for row in first.rows[:ONSET]]
    again = [(row.loss, row.grad_norm) for row in (*result.prefix, *result.outcomes[0].rows)]
    assert again[:ONSET] == recorded
    assert (result.problem, first.error, second.error) == ("", "", "")
    # Dropped updates moved nothing, and neither did the replay of the step with the incident.
    assert first.moved[ONSET:] == second.moved[ONSET:] == [False] * (len(first.moved) - ONSET)


def test_a_rank_that_differs_is_named_on_all(built_extensions: Path, tmp_path: Path) -> None:
    errors = [told.error for told in run(1, built_extensions, tmp_path)]
    assert errors[0] == errors[1]
    assert "the state of rank 1 is not what it was" in errors[0]
