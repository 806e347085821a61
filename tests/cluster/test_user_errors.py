"""Errors of the user's own code: shown as theirs, first cause first, exit code 6, and never repaired for long."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.machine import Config, Ended, Machine, data, kinds, of_kind, paced

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_model"


@pytest.fixture(scope="module")
def raising(machine: Machine, base: Config) -> Ended:
    faults = [{"kind": "raise", "step": 14, "rank": 1}]
    # At this pace, what both saved at step 10 is there before one of them falls.
    config = machine.write("raises", data=paced(base, pace_s=0.06), drill={"faults": faults})
    return machine.run("train", config, expect=6)


def test_the_same_error_at_the_same_step_twice_stops_at_the_second_time(raising: Ended, machine: Machine) -> None:
    events = machine.read("raises").events
    assert [data(event)["attempt"] for event in of_kind(events, "attempt.started")] == [1, 2]
    assert [event.step for event in of_kind(events, "fault.detected")] == [14, 14]
    assert data(of_kind(events, "run.failed")[0])["exit_code"] == 6


def test_the_same_error_at_the_same_step_twice_shows_the_users_error_first(raising: Ended) -> None:
    """The peer that lost its partner raised too; that is an echo."""
    headline = next(line for line in raising.err.splitlines() if line.startswith("error"))
    assert "an error in user code at step 14" in headline


def test_the_same_error_at_the_same_step_twice_keeps_what_was_reached(raising: Ended, machine: Machine) -> None:
    assert machine.run("checkpoints", "verify", "raises", "--json").json == {
        "version": 1,
        "run": "raises",
        "checkpoints": 1,
        "problems": [],
    }


@pytest.fixture(scope="module")
def buggy(machine: Machine) -> Ended:
    config = machine.write("buggy-model", model={"factory": "buggy:build", "args": {}})
    return machine.run("train", config, expect=6)


def test_a_bug_in_forward_stops_at_once(buggy: Ended, machine: Machine) -> None:
    """An error before the first finished step is a mistake in the set-up, not bad luck."""
    events = machine.read("buggy-model").events
    assert kinds(events).count("attempt.started") == 1
    assert "state.restored" not in kinds(events)


def test_a_bug_in_forward_shows_file_and_line_of_the_user(buggy: Ended, machine: Machine) -> None:
    source = machine.folder / "buggy.py"
    line = 1 + next(n for n, text in enumerate(source.read_text().splitlines()) if "nine" in text and "@" in text)
    assert f"{source}:{line}" in buggy.err


def test_a_bug_in_forward_shows_the_users_frames_and_none_of_ours_as_a_crash(buggy: Ended) -> None:
    assert "this is a bug of ours" not in buggy.err
    assert "platform/cli.py" not in buggy.err
    assert "RayTaskError" not in buggy.err
    frames = [line.strip() for line in buggy.err.splitlines() if line.strip().startswith("File ")]
    assert len(frames) == 1
    assert "buggy.py" in frames[0]


def test_the_example_with_a_model_of_ones_own_trains_to_the_end(machine: Machine, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "custom_model", ignore=shutil.ignore_patterns("__pycache__"))
    machine.run(
        "train", "custom_model/custom.yaml", "--set", "train.steps=20", "--set", "tracking.uri=null", cwd=tmp_path
    )
    run = machine.read("custom-model")
    assert run.record.outcome == "finished"
    assert run.rows[-1]["loss"] < run.rows[0]["loss"]
