"""Looking at processes of this machine from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stormsail.supervisor.evidence.found import Target
from stormsail.supervisor.evidence.looking import look_here

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WORKER = """
import sys, time
from pathlib import Path
from stormsail.workers.stacks import register_stacks, stacks_file
register_stacks(stacks_file(Path(sys.argv[1]), 0))
def worker_main():
    print("ready", flush=True)
    time.sleep(60)
worker_main()
"""
BARE = "import time; print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rank-0.log").write_text("it began\n", encoding="utf-8")
    return tmp_path


def started(code: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait(10.0)
    process.stdout.close()


@pytest.fixture
def worker(folder: Path) -> Iterator[subprocess.Popen[str]]:
    yield from started(WORKER, folder)


@pytest.fixture
def bare(folder: Path) -> Iterator[subprocess.Popen[str]]:
    yield from started(BARE, folder)


@pytest.fixture
def no_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)


def target(process: subprocess.Popen[str], folder: Path) -> Target:
    return Target(0, 0, process.pid, "127.0.0.1", "here", str(folder))


@pytest.mark.usefixtures("no_spy")
def test_where_py_spy_is_not_there_the_worker_writes_its_stacks_itself(
    worker: subprocess.Popen[str], folder: Path
) -> None:
    found = look_here([target(worker, folder)], 10.0)[0]
    assert found.source == "faulthandler"
    assert "worker_main" in found.stacks
    assert found.log_tail == "it began\n"
    assert worker.poll() is None


@pytest.mark.usefixtures("no_spy")
def test_a_process_without_a_handler_is_not_ended_by_the_question(bare: subprocess.Popen[str], folder: Path) -> None:
    found = look_here([target(bare, folder)], 10.0)[0]
    assert found.source == "none: py-spy: not installed; faulthandler: the process has no handler yet"
    assert bare.poll() is None


def test_a_stopped_process_is_recognised(worker: subprocess.Popen[str], folder: Path) -> None:
    worker.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    found = look_here([target(worker, folder)], 10.0)[0]
    assert found.stopped
    assert f"{worker.pid} python" in found.threads
    # py-spy may not be permitted here, and a stopped process answers no signal: then that is said.
    assert "worker_main" in found.stacks or "a stopped process answers no signal" in found.source


def test_a_process_that_is_gone_is_told_as_that(folder: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30.0)
    found = look_here([Target(4, 0, gone.pid, "127.0.0.1", "here", str(folder))], 10.0)[0]
    assert (found.rank, found.state, found.log_tail) == (4, "gone", "it began\n")
