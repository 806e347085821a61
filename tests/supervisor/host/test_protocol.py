"""A client never waits for ever, and can tell a dead host from a slow one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stormsail.platform.errors import TryLaterError
from stormsail.platform.home import Home
from stormsail.supervisor.host.paths import HostPaths
from stormsail.supervisor.host.protocol import NoHostError, answer, ask, waiting


@pytest.fixture
def listener(home: Home) -> Iterator[socket.socket]:
    paths = HostPaths.of(home)
    paths.make_folders()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(paths.control))
        listener.listen()
        yield listener


def put(home: Home, limit_s: float = 10.0) -> dict[str, object]:
    control = HostPaths.of(home).control
    return ask(control, {"op": "ping"}, limit_s=limit_s, log=Path("/the/log"), on_wait=lambda _: None)


def test_no_socket_is_no_host(home: Home) -> None:
    with pytest.raises(NoHostError):
        put(home)


def test_a_socket_that_nobody_listens_on_is_no_host(home: Home) -> None:
    paths = HostPaths.of(home)
    paths.make_folders()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(paths.control))
    with pytest.raises(NoHostError):
        put(home)


def test_a_host_that_says_nothing_is_given_up_and_its_log_named(home: Home, listener: socket.socket) -> None:
    with pytest.raises(TryLaterError, match=r"/the/log: .* did not answer `ping`"):
        put(home, limit_s=0.2)
    listener.close()


def test_an_answer_may_come_after_any_number_of_waits(home: Home) -> None:
    lines = waiting("starting") * 3 + answer({"here": 1})
    assert lines.count(b"\n") == 4
