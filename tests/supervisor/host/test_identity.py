"""A process is known by more than its pid."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from stormsail.supervisor.host.identity import ProcessIdentity


def test_this_process_is_alive_and_here() -> None:
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    assert mine.is_alive()
    assert not mine.is_elsewhere()


def test_the_same_pid_with_another_start_or_boot_is_another_process() -> None:
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    assert not replace(mine, started="1").is_alive()
    assert not replace(mine, boot_id="another boot").is_alive()
    assert replace(mine, machine="another machine").is_elsewhere()


def test_a_process_that_ended_is_dead_before_it_is_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        identity = ProcessIdentity.of(child.pid)
        assert identity is not None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ProcessIdentity.of(child.pid) is None
        assert not identity.is_alive()


def test_a_pid_that_nobody_has_is_nobody() -> None:
    assert ProcessIdentity.of(2**22 + 1) is None
