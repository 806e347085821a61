"""What a run's name means: live, unfinished, finished, begun anew, and asked for but not there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.machine import Ended, Machine, data, ending, kinds, of_kind

from stormsail.platform.config.infrastructure import StorageSection
from stormsail.platform.home import Home
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import places
from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

# Asks for what this machine lacks, so that its supervisor lives and waits without costing anything.
WAITING = {"accelerator": "gpu", "wait_s": 600}


@pytest.fixture(scope="module")
def waited(machine: Machine) -> SimpleNamespace:
    """A run that was live for a while: what a second command heard meanwhile, and how the first one ended."""
    config = machine.write("waited", cluster=WAITING)
    with machine.started("train", config) as first:
        machine.await_events("waited", lambda events: "resources.waiting" in kinds(events), within_s=400.0)
        second = machine.run("train", config, expect=2)
        status = machine.run("status", "waited").out
        stopped = machine.run("stop", "waited", "--reason", "enough")
        return SimpleNamespace(
            second=second,
            status=status,
            stopped=stopped,
            first=ending(first, within_s=200.0),
            run=machine.read("waited"),
        )


def test_a_live_name_is_refused_with_its_owner_and_since_when(waited: SimpleNamespace) -> None:
    """Case 16."""
    assert "run 'waited' is live" in waited.second.err
    owner = data(of_kind(waited.run.events, "run.started")[0])["owner"]
    assert f"owned by {owner} since " in waited.second.err
    assert owner.split()[0]


def test_the_refusal_says_how_to_attach_stop_or_rename(waited: SimpleNamespace) -> None:
    for way in ("stormsail attach waited", "stormsail stop waited", "--set name="):
        assert way in waited.second.err


def test_a_live_name_is_not_disturbed_by_the_second_command(waited: SimpleNamespace) -> None:
    assert kinds(waited.run.events).count("run.started") == 1
    assert "run.continued" not in kinds(waited.run.events)


def test_a_wait_says_for_what_and_until_when(waited: SimpleNamespace) -> None:
    assert "waiting for free resources until " in waited.first.out
    assert "GPU 2 wanted, 0 free" in waited.first.out


def test_a_run_that_waits_can_be_stopped(waited: SimpleNamespace) -> None:
    assert waited.first.code == 5
    assert waited.run.record.outcome == "stopped"
    assert "enough" in waited.first.err


@pytest.fixture(scope="module")
def twice(machine: Machine) -> tuple[list[Ended], ReadRun]:
    """The same command started twice at the same moment."""
    config = machine.write("twice", train={"steps": 10})
    with machine.started("train", config) as one, machine.started("train", config) as two:
        ended = [ending(process, within_s=600.0) for process in (one, two)]
    return sorted(ended, key=lambda item: item.code), machine.read("twice")


def test_of_two_starts_at_once_exactly_one_runs(twice: tuple[list[Ended], ReadRun]) -> None:
    """Case 16."""
    (winner, loser), run = twice
    assert winner.code == 0, winner
    assert loser.code == 2, loser
    assert kinds(run.events).count("run.started") == kinds(run.events).count("run.finished") == 1
    assert [row["step"] for row in run.rows] == list(range(10))


def test_the_one_that_lost_says_how_to_follow_the_other(twice: tuple[list[Ended], ReadRun]) -> None:
    assert "stormsail attach twice" in twice[0][1].err
    assert "Traceback" not in twice[0][1].err


def test_a_finished_name_is_refused_and_says_how_to_extend_or_rename(machine: Machine, straight: ReadRun) -> None:
    refused = machine.run("train", machine.write("straight"), expect=2)
    assert "run 'straight' is finished" in refused.err
    for way in ("--set train.steps=", "--set name=", "--fresh"):
        assert way in refused.err


@pytest.mark.parametrize("key", ["seed=12", "model.args.d_model=64", "data.sequence_tokens=16", "optimizer.lr=1e-4"])
def test_a_name_goes_on_only_as_the_same_experiment(machine: Machine, straight: ReadRun, key: str) -> None:
    config = machine.write("straight")
    before = len(machine.read("straight").events)
    refused = machine.run("train", config, "--set", "train.steps=200", "--set", key, expect=2)
    assert f"{key.partition('=')[0]}: " in refused.err
    assert "-> " + key.partition("=")[2].replace("1e-4", "0.0001") in refused.err
    assert len(machine.read("straight").events) == before


@pytest.fixture(scope="module")
def renewed(machine: Machine, waited: SimpleNamespace) -> ReadRun:
    """The run that had been stopped, begun anew."""
    machine.run("train", machine.write("waited", train={"steps": 10}, seed=99), "--fresh")
    return machine.read("waited")


def test_fresh_begins_anew_even_as_another_experiment(renewed: ReadRun) -> None:
    assert renewed.place.incarnation == 2
    assert kinds(renewed.events)[0] == "run.started"
    assert renewed.record.outcome == "finished"
    assert [row["step"] for row in renewed.rows] == list(range(10))


def test_what_was_there_before_is_kept_under_its_number(machine: Machine, renewed: ReadRun) -> None:
    assert machine.run("status", "waited@1", "--json").json["outcome"] == "stopped"
    assert machine.run("status", "waited@2", "--json").json["outcome"] == "finished"


# ------------------------------------------------------------------------------------- case 8: asked to resume


@pytest.fixture(scope="module")
def store(machine: Machine) -> StoreAddress:
    """The real S3 server of this machine, which can be reached like any other."""
    return places.root_address(StorageSection(), Home(machine.home), print)


def as_s3(address: StoreAddress, url: str) -> dict[str, object]:
    return {"url": url, "endpoint": address.endpoint, "region": address.region or "us-east-1"}


def keys_of(address: StoreAddress, **other: str) -> dict[str, str]:
    """The store's keys as environment variables."""
    held = json.loads(Path(address.credentials_file or "").read_text(encoding="ascii"))
    return {"AWS_ACCESS_KEY_ID": held["access_key"], "AWS_SECRET_ACCESS_KEY": held["secret_key"], **other}


def test_resume_of_a_run_that_is_not_there(machine: Machine, straight: ReadRun) -> None:
    refused = machine.run("train", machine.write("elsewhere"), "--must-resume", expect=2)
    assert "no run is called 'elsewhere'" in refused.err
    assert nothing_of(machine, "elsewhere")


def test_resume_of_a_mistyped_run_names_the_near_one(machine: Machine, straight: ReadRun) -> None:
    refused = machine.run("train", machine.write("strait"), "--must-resume", expect=2)
    assert "no run is called 'strait', did you mean 'straight'?" in refused.err
    assert nothing_of(machine, "strait")


def test_resume_of_a_run_without_a_checkpoint(machine: Machine) -> None:
    config = machine.write("empty", cluster={"accelerator": "gpu", "wait_s": 0.5})
    machine.run("train", config, expect=75)
    before = len(machine.read("empty").events)
    refused = machine.run("train", config, "--must-resume", expect=3)
    assert "run 'empty' has no checkpoint to go on from" in refused.err
    assert len(machine.read("empty").events) == before


def test_resume_where_the_prefix_holds_nothing(machine: Machine, store: StoreAddress) -> None:
    config = machine.write("moved", storage=as_s3(store, "s3://stormsail/no/such/prefix"))
    refused = machine.run("train", config, "--must-resume", expect=2, env=keys_of(store))
    assert "there are no runs here" in refused.err
    assert "s3://stormsail/no/such/prefix" in refused.err


def test_resume_where_there_is_no_such_bucket(machine: Machine, store: StoreAddress) -> None:
    config = machine.write("moved", storage=as_s3(store, "s3://no-such-bucket/runs"))
    refused = machine.run("train", config, "--must-resume", expect=2, env=keys_of(store))
    assert "no-such-bucket" in refused.err
    assert "bucket" in refused.err


def test_resume_where_the_bucket_answers_403(machine: Machine, store: StoreAddress) -> None:
    config = machine.write("moved", storage=as_s3(store, "s3://stormsail"))
    wrong = keys_of(store, AWS_SECRET_ACCESS_KEY="not-the-right-one")
    refused = machine.run("train", config, "--must-resume", expect=2, env=wrong)
    assert "403" in refused.err or "denied" in refused.err.lower() or "refuse" in refused.err.lower()
    assert "not-the-right-one" not in refused.err


def nothing_of(machine: Machine, name: str) -> bool:
    """Whether nothing was left behind by a command that was refused."""
    return not (machine.home / "runs" / name).exists()
