"""A rank that is alive and does not move: seen, looked into, told, ended, and repaired."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.machine import Config, Machine, brake, data, ending, final_rows, kinds, of_kind, paced

from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LIMIT_S = 4.0


@pytest.fixture(scope="module")
def hung(machine: Machine, base: Config, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run in whose first attempt rank 1 was stopped by a signal."""
    pedal = tmp_path_factory.mktemp("hung") / "brake"
    config = machine.write(
        "hung", data=paced(base, brake=pedal, free=24), cluster={"step_timeout_s": LIMIT_S}, hang={"evidence_s": 15}
    )
    with brake(pedal), machine.started("train", config) as command:
        machine.await_events("hung", lambda events: "checkpoint.committed" in kinds(events), within_s=150.0)
        formed = of_kind(machine.read("hung").events, "world.formed")[0]
        pids = [worker["pid"] for worker in data(formed)["workers"]]
        os.kill(pids[1], signal.SIGSTOP)
        machine.await_events("hung", lambda events: "hang.evidence" in kinds(events), within_s=60.0)
        pedal.unlink()
        ended = ending(command, within_s=150.0)
    return SimpleNamespace(command=ended, pids=pids, run=machine.read("hung"))


def test_a_stopped_rank_is_a_hang_and_costs_one_resume(hung: SimpleNamespace) -> None:
    run: ReadRun = hung.run
    fault = of_kind(run.events, "fault.detected")[0]
    assert (data(fault)["kind"], data(fault)["rank"]) == ("hang", 1)
    assert [data(event)["tier"] for event in of_kind(run.events, "ladder.decided")] == ["resume"]
    assert run.record.outcome == "finished"
    assert sorted(final_rows(run)) == list(range(70))


def test_the_evidence_is_there_before_the_attempt_is_ended(hung: SimpleNamespace) -> None:
    order = kinds(hung.run.events)
    assert order.index("hang.suspected") < order.index("hang.evidence") < order.index("fault.detected")
    noted = data(of_kind(hung.run.events, "hang.evidence")[0])
    assert noted["finding"] == "the process of rank 1 is stopped (by a signal or a debugger)"
    assert noted["problem"] == ""
    store = hung.run.place.store()
    for key in noted["keys"]:
        assert store.get(key) == (Path(noted["folder"]) / Path(key).name).read_bytes()
    waiting = store.get("{}/rank-0.txt".format(noted["keys"][0].rpartition("/")[0])).decode()
    assert f"pid {hung.pids[0]} on" in waiting
    assert "worker_main" in waiting
    assert "in exchange" in waiting or "exchange (" in waiting or "backward" in waiting


def test_the_last_collectives_of_the_rank_that_waits_are_kept(hung: SimpleNamespace) -> None:
    noted = data(of_kind(hung.run.events, "hang.evidence")[0])
    flights = [key for key in noted["keys"] if "flight-0" in key]
    assert len(flights) == 1
    assert json.loads(hung.run.place.store().get(flights[0]))["entries"]


def test_the_report_names_the_evidence(hung: SimpleNamespace, machine: Machine) -> None:
    noted = data(of_kind(hung.run.events, "hang.evidence")[0])
    text = machine.run("report", "hung").out
    assert "evidence: the process of rank 1 is stopped" in text
    assert noted["folder"] in text
    assert "gathering evidence before anything is ended" in hung.command.out


def test_nobody_of_the_first_attempt_is_left(hung: SimpleNamespace) -> None:
    assert not [pid for pid in hung.pids if Path(f"/proc/{pid}").exists()]
