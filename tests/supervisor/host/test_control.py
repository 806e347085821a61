"""Requests come in on the socket, wait for the main thread, and are all answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stormsail.platform.errors import ClusterError
from stormsail.platform.home import Home
from stormsail.supervisor.host.control import ControlServer
from stormsail.supervisor.host.paths import HostPaths
from stormsail.supervisor.host.protocol import NoHostError, ask


@pytest.fixture
def control(home: Home) -> Path:
    paths = HostPaths.of(home)
    paths.make_folders()
    return paths.control


@pytest.fixture
def server(control: Path) -> Iterator[ControlServer]:
    server = ControlServer(control, lambda: "thinking")
    server.start()
    yield server
    server.stop()


def answer_one(server: ControlServer, gate: threading.Event | None = None) -> threading.Thread:
    def work() -> None:
        job = server.jobs.get(timeout=30)
        assert job is not None
        if gate is not None:
            assert gate.wait(30)
        if job.request["op"] == "fail":
            job.outcome.set_exception(ClusterError("It broke.", where="here", todo="Mend it."))
        else:
            job.outcome.set_result({"echo": job.request["op"]})

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def put(control: Path, request: dict[str, object]) -> dict[str, object]:
    return ask(control, request, limit_s=20, log=Path("log"), on_wait=lambda _: None)


def test_an_answer_comes_back(server: ControlServer, control: Path) -> None:
    thread = answer_one(server)
    assert put(control, {"op": "ping"}) == {"echo": "ping"}
    thread.join()


def test_an_error_comes_back_with_its_parts(server: ControlServer, control: Path) -> None:
    thread = answer_one(server)
    with pytest.raises(ClusterError) as caught:
        put(control, {"op": "fail"})
    assert str(caught.value) == "here: It broke.\nMend it."
    thread.join()


def test_a_long_request_says_what_it_waits_for(server: ControlServer, control: Path) -> None:
    gate = threading.Event()
    thread = answer_one(server, gate)
    said: list[str] = []

    def hear(what: str) -> None:
        said.append(what)
        gate.set()

    assert ask(control, {"op": "ping"}, limit_s=20, log=Path("log"), on_wait=hear) == {"echo": "ping"}
    assert set(said) == {"thinking"}
    thread.join()


def test_what_is_no_request_is_refused_and_the_next_one_served(server: ControlServer, control: Path) -> None:
    for line in (b"hello\n", b"[]\n", b'{"no": "op"}\n'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(control))
            connection.sendall(line)
            assert b"no request" in connection.recv(4096)
    thread = answer_one(server)
    assert put(control, {"op": "ping"}) == {"echo": "ping"}
    thread.join()


def test_a_client_that_goes_away_harms_nobody(server: ControlServer, control: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(control))
    thread = answer_one(server)
    assert put(control, {"op": "ping"}) == {"echo": "ping"}
    thread.join()


def test_whoever_waits_when_the_host_ends_is_told_to_start_another(server: ControlServer, control: Path) -> None:
    asked = threading.Thread(target=lambda: outcomes.append(refused(control)))
    outcomes: list[bool] = []
    asked.start()
    while server.jobs.empty():
        asked.join(0.01)
    server.stop()
    asked.join()
    assert outcomes == [True]


def refused(control: Path) -> bool:
    try:
        put(control, {"op": "ping"})
    except NoHostError:
        return True
    return False


def test_the_socket_is_private_and_a_stale_one_is_replaced(control: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(control))
    server = ControlServer(control, lambda: "")
    server.start()
    assert control.stat().st_mode & 0o777 == 0o600
    server.stop()
    assert not control.exists()
