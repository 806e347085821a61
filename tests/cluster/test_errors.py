"""What cannot work is said once, clearly, with the right exit code, and leaves nothing half-written."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.support.fake_s3 import FakeS3, Refusal
from tests.support.machine import Ended, Machine, kinds

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

KEYS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "something"}


def one_clear_error(ended: Ended) -> str:
    """The error's first line, after checking that there is one error and no traceback."""
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, ended
    assert "Traceback" not in ended.err + ended.out
    return lines[0]


def test_every_mistake_in_a_configuration_is_shown_with_its_line(machine: Machine) -> None:
    """Cases 59 and 60, through the command that would have started the run."""
    path = machine.folder / "mistakes.yaml"
    path.write_text(
        "name: mistakes\n"
        "train: {steps: 10, chekpoint_every: 50}\n"
        "optimizer: {lr: .nan}\n"
        "schedule: {warmup-steps: 3}\n"
        "cluster: {workers: true}\n",
        encoding="utf-8",
    )
    ended = machine.run("train", path, expect=2)
    for line, word in ((2, "chekpoint_every"), (3, "lr"), (4, "warmup_steps"), (5, "workers")):
        assert f"mistakes.yaml:{line}" in ended.err
        assert word in ended.err
    assert "Traceback" not in ended.err
    assert not (machine.home / "runs" / "mistakes").exists()


def test_a_configuration_that_is_not_there(machine: Machine) -> None:
    assert "nothing.yaml" in machine.run("train", "nothing.yaml", expect=2).err


def test_an_unreachable_bucket(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        config = machine.write("unreachable", storage={"url": "s3://bucket/runs", "endpoint": endpoint, "timeout_s": 5})
        ended = machine.run("train", config, expect=75, env=KEYS)
    assert endpoint in one_clear_error(ended) or endpoint in ended.err
    assert not (machine.home / "runs" / "unreachable").exists()


@pytest.fixture
def read_only() -> Iterator[FakeS3]:
    """A bucket that may be read and not written."""

    def rule(method: str, _path: str, _headers: object) -> Refusal | None:
        return Refusal(403, "AccessDenied") if method in ("PUT", "POST", "DELETE") else None

    server = FakeS3(rule=rule)
    yield server
    server.close()


def test_a_read_only_bucket(machine: Machine, read_only: FakeS3) -> None:
    config = machine.write("read-only", storage={"url": "s3://bucket/runs", "endpoint": read_only.endpoint})
    ended = machine.run("train", config, expect=2, env=KEYS)
    said = one_clear_error(ended)
    assert "AccessDenied" in ended.err or "denied" in ended.err.lower() or "403" in ended.err, said
    assert read_only.objects == {}
    assert not (machine.home / "runs" / "read-only").exists()


def test_a_folder_that_cannot_be_written(machine: Machine) -> None:
    """`/proc` takes no new folder from anybody, not even from root."""
    config = machine.write("in-proc", storage={"url": "file:///proc/stormsail"})
    ended = machine.run("train", config, expect=2)
    assert "/proc/stormsail" in ended.err
    one_clear_error(ended)
    assert not (machine.home / "runs" / "in-proc").exists()


@pytest.fixture(scope="module")
def no_data(machine: Machine) -> Ended:
    config = machine.write("no-data", data={"args": {"path": str(machine.folder / "no" / "shards")}})
    return machine.run("train", config, expect=2)


def test_missing_data_is_named_with_its_path(no_data: Ended, machine: Machine) -> None:
    assert str(machine.folder / "no" / "shards") in no_data.err
    one_clear_error(no_data)


def test_missing_data_stops_at_once_and_leaves_no_checkpoint(no_data: Ended, machine: Machine) -> None:
    run = machine.read("no-data")
    assert kinds(run.events).count("attempt.started") <= 1
    assert run.rows == []
    assert machine.run("checkpoints", "ls", "no-data", "--json").json["checkpoints"] == []


@pytest.fixture(scope="module")
def no_room(machine: Machine) -> Ended:
    config = machine.write("no-room", cluster={"accelerator": "gpu", "wait_s": 5})
    return machine.run("train", config, expect=75)


def test_no_room_says_what_is_waited_for_and_until_when(no_room: Ended) -> None:
    assert "waiting for free resources until " in no_room.out
    assert "GPU 2 wanted, 0 free" in no_room.out


def test_no_room_gives_up_in_time_and_says_what_to_do(no_room: Ended) -> None:
    assert "no room for 2 workers within 5 s" in one_clear_error(no_room)
    assert "cluster.workers" in no_room.err


def test_no_room_can_go_on_later(no_room: Ended, machine: Machine) -> None:
    run = machine.read("no-room")
    assert "attempt.started" not in kinds(run.events)
    assert run.record.outcome == "failed"
