"""What is left of a session is ended, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

from stormsail.supervisor.host import undertaker

LEADER = """
import subprocess, sys, time
from stormsail.supervisor.host import undertaker
undertaker.engage(0.1)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(child.pid, flush=True)
time.sleep(300)
"""


def test_members_are_those_of_the_session_that_still_run() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as child:
        assert undertaker.members(child.pid) == [child.pid]
        assert undertaker.bury(child.pid, grace_s=0.0) == 1
        assert undertaker.members(child.pid) == []
    assert os.getpid() in undertaker.members(os.getsid(0))


def test_a_session_that_is_empty_needs_nothing() -> None:
    assert undertaker.bury(2**22 + 1) == 0


def test_children_of_a_killed_leader_are_ended(wait_until: Callable[[Callable[[], bool]], None]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        assert child in undertaker.members(leader.pid)
        os.kill(leader.pid, signal.SIGKILL)
    wait_until(lambda: undertaker.members(leader.pid) == [])
