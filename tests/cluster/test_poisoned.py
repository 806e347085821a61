"""A state that is no number any more: seen before its gradients tell, never saved, never gone back to."""

from __future__ import annotations

import pytest
from tests.support.machine import Config, Machine, data, final_rows, of_kind, paced

from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def poisoned(machine: Machine, base: Config, tmp_path_factory: pytest.TempPathFactory) -> ReadRun:
    """A moment of one rank became NaN in the very update before a save; later the run crashed."""
    poison = tmp_path_factory.mktemp("poisoned") / "poison"
    poison.touch()
    config = machine.write(
        "poisoned",
        train={"steps": 50},
        data=paced(base, pace_s=0.05),  # what was saved ten steps ago is there
        optimizer={"factory": "poisoned:build", "args": {"poison": str(poison), "at": 20}},
        drill={"faults": [{"kind": "kill", "step": 36, "rank": 0}]},
    )
    machine.run("train", config)
    assert not poison.exists()
    return machine.read("poisoned")


def test_a_state_with_nan_opens_an_incident_as_soon_as_it_shows(poisoned: ReadRun) -> None:
    """The moment spoils a weight in the update of step 20, and the weight the gradient of step 21.

    The refused save tells the next step to count, and that is step 20 where the save was quick.
    """
    first = of_kind(poisoned.events, "fault.detected")[0]
    assert data(first)["kind"] == "nonfinite"
    assert first.step in (20, 21)


def test_a_save_with_nan_is_refused_and_said_before_any_gradient_shows_it(poisoned: ReadRun) -> None:
    """Case 18."""
    missed = next(event for event in of_kind(poisoned.events, "checkpoint.missed") if not data(event)["finite"])
    assert (missed.step, missed.generation) == (20, 1)
    assert "not finite: 1 on rank 1" in str(data(missed)["why"])
    committed = [(event.step, data(event)["generation"]) for event in of_kind(poisoned.events, "checkpoint.committed")]
    assert (20, 1) not in committed
    used = [(event.step, data(event)["ref_generation"]) for event in of_kind(poisoned.events, "state.restored")]
    assert used[0] == (10, 1)


def test_the_crash_inside_the_episode_also_goes_back_to_before_the_poison(poisoned: ReadRun) -> None:
    crash = next(event for event in of_kind(poisoned.events, "ladder.decided") if data(event)["kind"] == "process")
    assert data(crash)["restore"]["step"] <= 20
    assert poisoned.record.outcome == "finished"
    assert sorted(final_rows(poisoned)) == list(range(50))
