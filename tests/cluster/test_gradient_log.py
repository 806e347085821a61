"""A run with a gradient log loses no step with a lost process, and holds the bits of one that nothing disturbed."""

from __future__ import annotations

import pytest
from tests.support.machine import Config, Machine, data, final_rows, of_kind, paced

from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

STEPS = 40
KILLS = [
    {"kind": "kill", "step": 6, "rank": 0},  # before the first checkpoint
    {"kind": "kill", "step": 27, "rank": 1},
]


def run(machine: Machine, base: Config, name: str, log: str, **sections: object) -> ReadRun:
    config = machine.write(
        name, train={"steps": STEPS}, data=paced(base, pace_s=0.06), checkpoint={"gradient_log": log}, **sections
    )
    machine.run("train", config, timeout_s=800.0)
    return machine.read(name)


@pytest.fixture(scope="module")
def undisturbed(machine: Machine, base: Config) -> ReadRun:
    return run(machine, base, "logged-straight", "store")


@pytest.fixture(scope="module")
def killed(machine: Machine, base: Config) -> ReadRun:
    """Its log lies in the node's memory, and outlives the processes that wrote it."""
    return run(machine, base, "logged-killed", "vault", drill={"faults": KILLS})


def test_the_state_has_the_digest_of_the_undisturbed_run(killed: ReadRun, undisturbed: ReadRun) -> None:
    digests = [data(of_kind(read.events, "run.finished")[-1])["digest"] for read in (killed, undisturbed)]
    assert digests[0] is not None
    assert digests[0] == digests[1]


def test_no_step_is_computed_twice(machine: Machine, killed: ReadRun) -> None:
    assert [int(row["step"]) for row in killed.rows] == list(range(STEPS))
    report = machine.run("report", "logged-killed", "--json").json
    assert report["lost_steps"] == 0
    assert [incident["tier"] for incident in report["incidents"]] == [1, 1]


def test_every_step_has_the_same_loss_learning_rate_and_batch(killed: ReadRun, undisturbed: ReadRun) -> None:
    kept = ("step", "applied", "loss", "grad_norm", "lr", "tokens", "batch")
    mine, theirs = (
        [{key: row[key] for key in kept} for _, row in sorted(final_rows(read).items())]
        for read in (killed, undisturbed)
    )
    assert mine == theirs


def test_each_loss_is_made_up_for_from_the_log(killed: ReadRun) -> None:
    replayed = [(data(event)["from_step"], event.step) for event in of_kind(killed.events, "log.replayed")]
    assert replayed == [(0, 6), (20, 27)]
    assert of_kind(killed.events, "log.broken") == of_kind(killed.events, "log.refused") == []


def test_only_the_log_that_may_be_needed_is_kept(undisturbed: ReadRun, killed: ReadRun, machine: Machine) -> None:
    store = machine.place("logged-straight").store()
    steps = {int(info.key.split("/")[2]) for info in store.list("log/")}
    assert (min(steps), max(steps)) == (30, STEPS - 1)
    assert list(machine.place("logged-killed").store().list("log/")) == []
