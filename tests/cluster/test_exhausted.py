"""A fault that no tier can cure ends the run with exit code 4, everything kept, and a reason."""

from __future__ import annotations

import pytest
from tests.support.machine import Ended, Machine, data, kinds, of_kind

from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

FIRST = 34


@pytest.fixture(scope="module")
def ended(machine: Machine) -> Ended:
    config = machine.write(
        "hopeless",
        rollback={"min_steps": 10},
        drill={"faults": [{"kind": "nonfinite", "step": FIRST, "steps": 1000, "rank": 1}]},
    )
    return machine.run("train", config, expect=4)


@pytest.fixture(scope="module")
def run(ended: Ended, machine: Machine) -> ReadRun:
    return machine.read("hopeless")


def test_every_tier_was_tried_once_in_order(run: ReadRun) -> None:
    tiers = [data(event)["tier"] for event in of_kind(run.events, "ladder.decided")]
    assert tiers == ["resume", "rollback", "fp32_replay", "exhausted"]


def test_no_process_was_started_again(run: ReadRun) -> None:
    assert kinds(run.events).count("world.formed") == 1


def test_no_bad_gradient_was_ever_applied(run: ReadRun) -> None:
    assert all(row["outcome"] == "dropped" for row in run.rows if row["step"] >= FIRST)
    assert max(row["applied"] for row in run.rows) == FIRST


def test_the_command_says_why(ended: Ended) -> None:
    assert "every repair was tried" in ended.err
    assert "stormsail report hopeless" in ended.err
    assert "Traceback" not in ended.err


def test_the_report_says_why(machine: Machine, run: ReadRun) -> None:
    report = machine.run("report", "hopeless", "--json").json
    assert report["outcome"] == "exhausted"
    assert report["exit_code"] == 4
    assert "every tier was tried" in report["outcome_reason"]
    assert report["incidents"][0]["tiers_tried"][:3] == [1, 2, 3]
    assert "needs a person" in machine.run("events", "hopeless").out


def test_every_checkpoint_is_kept_and_whole(machine: Machine, run: ReadRun) -> None:
    found = machine.run("checkpoints", "verify", "hopeless", "--json").json
    assert found["checkpoints"] >= 3
    assert found["problems"] == []


def test_no_checkpoint_from_inside_the_incident_is_known_good(machine: Machine, run: ReadRun) -> None:
    """Case 18: what was saved in an open anomaly is never published as good."""
    shelf = machine.run("checkpoints", "ls", "hopeless", "--json").json["checkpoints"]
    assert all(row["step"] <= FIRST for row in shelf if row["good"])


def test_attach_to_what_is_over_says_the_same(machine: Machine, run: ReadRun) -> None:
    assert "every repair was tried" in machine.run("attach", "hopeless", expect=4).err
