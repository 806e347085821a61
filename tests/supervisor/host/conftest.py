"""A home of its own for each test, whose host process never outlives it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stormsail.platform.home import Home
from stormsail.supervisor.host.client import down
from stormsail.supervisor.host.paths import HostPaths


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    down(home)
    shutil.rmtree(HostPaths.of(home).short, ignore_errors=True)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool], limit_s: float = 240.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            time.sleep(0.05)

    return wait


@pytest.fixture
def processes_of() -> Callable[[Home, int], list[str]]:
    """Command lines of all processes that belong to a host: of its session, or with its folders in their arguments."""

    def find(home: Home, host_pid: int) -> list[str]:
        marks = (str(home.path), str(HostPaths.of(home).short))
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                line = belonging(folder, host_pid, marks)
                if line:
                    found.append(line)
        return found

    return find


def belonging(folder: Path, session: int, marks: tuple[str, ...]) -> str:
    try:
        state, _, _, its_session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
        line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    if state in ("Z", "X"):
        return ""
    return f"{folder.name} {line}" if int(its_session) == session or any(mark in line for mark in marks) else ""
