"""A run that diagnoses: each incident is replayed on the live engines, and the ladder begins where the cause can be cured."""

from __future__ import annotations

import pytest
from tests.support.machine import Machine, data, final_rows, of_kind

from stormsail.platform.journal_events import Event
from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

UNSTABLE, OVERFLOW, STEPS = 50, 100, 140
FAULTS = [
    {"kind": "lr_instability", "step": UNSTABLE, "steps": 14, "scale": 60.0},
    {"kind": "bf16_overflow", "step": OVERFLOW, "steps": 4, "rank": 1},
]


@pytest.fixture(scope="module")
def healed(machine: Machine) -> ReadRun:
    config = machine.write(
        "diagnosed",
        train={"steps": STEPS},
        detect={"spike": {"grace_steps": 4}},
        diagnose={"enabled": True},
        rollback={"min_steps": 10},
        ladder={"probation_steps": 15},
        drill={"faults": FAULTS},
    )
    machine.run("train", config, timeout_s=800.0)
    return machine.read("diagnosed")


def verdicts(run: ReadRun) -> list[Event]:
    return of_kind(run.events, "diagnosis.made")


def test_each_incident_is_named_and_healed_by_the_tier_that_can(healed: ReadRun) -> None:
    found = [(data(event)["cause"], data(event)["confidence"]) for event in verdicts(healed)]
    assert [cause for cause, _ in found] == ["optimizer_oscillation", "numerics"], [data(e) for e in verdicts(healed)]
    assert [data(event)["tier"] for event in of_kind(healed.events, "ladder.decided")] == ["rollback", "fp32_replay"]


def test_the_same_steps_repeat_bit_for_bit_on_the_live_engines(healed: ReadRun) -> None:
    assert next(data(event)["exact"] for event in of_kind(healed.events, "diagnosis.begun")) is True
    assert any("bit for bit" in line for line in data(verdicts(healed)[0])["evidence"])


def test_replays_keep_their_budget_and_restart_nothing(healed: ReadRun) -> None:
    assert all(0 < data(event)["computed_steps"] <= 50 for event in verdicts(healed))
    assert len(of_kind(healed.events, "world.formed")) == 1


def test_replayed_steps_are_no_steps_of_the_run(healed: ReadRun) -> None:
    assert len({(row["generation"], row["step"]) for row in healed.rows}) == len(healed.rows)
    assert sorted(final_rows(healed)) == list(range(STEPS))
    assert [data(event)["index"] for event in of_kind(healed.events, "drill.fired")].count(1) == 1
