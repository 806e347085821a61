"""Sees to it that nothing of a host process stays behind, however that process dies.

The kernel kills what the host itself started, but some of Ray's processes are grandchildren that notice only
after a minute. This small process, in a session of its own, sleeps until the host is gone, and then ends what
is left of the host's *session*: the kernel gives a session's number to nobody else while it has members.
Run by path, without Stormsail on the import path: standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_GRACE_S = 3.0
_LIMIT_S = 30.0
_POLL_S = 0.1


def engage(grace_s: float = _GRACE_S) -> subprocess.Popen[bytes]:
    """Start the undertaker for this process, which leads its session and keeps the pipe's end until it dies."""
    reading, _ = os.pipe()  # the other end is never closed: its end is this process's end; no child inherits it
    process = subprocess.Popen(  # noqa: S603 - this very file
        [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), str(grace_s)],
        stdin=reading,
        start_new_session=True,
    )
    os.close(reading)
    return process


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _is_member(path, session)]


def bury(session: int, grace_s: float = _GRACE_S) -> int:
    """Give the members of a session time to end by themselves, then kill them. Returns how many had to be killed."""
    started = time.monotonic()
    killed: set[int] = set()
    while (left := members(session)) and time.monotonic() - started < _LIMIT_S:
        if time.monotonic() - started >= grace_s:
            for pid in left:
                _kill(pid)
            killed.update(left)
        time.sleep(_POLL_S)
    return len(killed)


def _is_member(stat: Path, session: int) -> bool:
    try:
        state, _, _, its_session, *_ = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(its_session) == session and state not in ("Z", "X")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _main(session: int, grace_s: float) -> None:
    sys.stdin.buffer.read()
    count = bury(session, grace_s)
    if count:
        print(f"ended {count} processes that a dead host process ({session}) had left", file=sys.stderr)  # noqa: T201 - the host's log


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]))
