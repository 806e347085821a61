"""A rank that is alive and does not move: seen, looked into, told, ended, and repaired."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.ears import Webhook, webhook
from tests.support.machine import Config, Machine, brake, data, ending, final_rows, kinds, of_kind, paced

from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LIMIT_S = 10.0  # a braked step takes one second, and one on a busy machine several


@pytest.fixture(scope="module")
def ear(machine: Machine) -> Iterator[Webhook]:
    """Where alerts go."""
    with webhook() as made:
        machine.environment["STORMSAIL_TEST_HOOK"] = made.url
        yield made
        del machine.environment["STORMSAIL_TEST_HOOK"]


@pytest.fixture(scope="module")
def hung(machine: Machine, base: Config, ear: Webhook, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run in whose first attempt rank 1 was stopped by a signal."""
    pedal = tmp_path_factory.mktemp("hung") / "brake"
    config = machine.write(
        "hung",
        data=paced(base, brake=pedal, free=24),
        cluster={"step_timeout_s": LIMIT_S},
        hang={"evidence_s": 90},
        alerts={"slack": "env:STORMSAIL_TEST_HOOK", "group_s": 0.5, "every_s": 1},
    )
    with brake(pedal), machine.started("train", config) as command:
        machine.await_events("hung", lambda events: "checkpoint.committed" in kinds(events), within_s=400.0)
        formed = of_kind(machine.read("hung").events, "world.formed")[0]
        pids = [worker["pid"] for worker in data(formed)["workers"]]
        os.kill(pids[1], signal.SIGSTOP)
        machine.await_events("hung", lambda events: "hang.evidence" in kinds(events), within_s=300.0)
        pedal.unlink()
        ended = ending(command, within_s=400.0)
    return SimpleNamespace(command=ended, pids=pids, run=machine.read("hung"), told=list(ear.heard))


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


def test_people_were_told_of_the_hang_its_repair_and_the_end(hung: SimpleNamespace) -> None:
    told = "\n".join(hung.told)
    for part in (
        "a rank does not move",
        "a rank hung: tier 1 of the ladder",
        "the run is done",
        "stormsail report hung",
    ):
        assert part in told
    sent = {number for event in of_kind(hung.run.events, "alert.sent") for number in data(event)["about"]}
    about = {
        event.number for event in hung.run.events if event.kind in ("hang.suspected", "ladder.decided", "run.finished")
    }
    assert about <= sent


def test_the_webhooks_address_is_kept_nowhere(hung: SimpleNamespace, machine: Machine) -> None:
    kept = [path for path in (machine.home / "runs" / "hung").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"s3cr3t-token" in path.read_bytes()]
    assert "s3cr3t" not in hung.command.out + hung.command.err


def test_monitors_tell_of_the_hang(hung: SimpleNamespace, machine: Machine) -> None:
    assert hung.run.record.outcome == "finished"
    items = {item["name"]: item for item in machine.run("monitors", "hung", "--json").json["items"]}
    assert (items["recovery.hangs"]["value"], items["recovery.hangs"]["level"]) == (1.0, "warn")
    assert items["loss.value"]["level"] == "normal"
    assert items["recovery.last_s"]["value"] > LIMIT_S
