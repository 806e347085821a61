"""Looking at hanging processes of this machine from outside: what the kernel says, their stacks, the ends of their logs.

Nothing here asks the processes for anything that needs their cooperation, and nothing pauses them. Stacks come from
py-spy, which reads another process's memory where the system permits it; else from faulthandler, which every worker has
put on a signal. A process that is stopped can answer no signal, and only py-spy sees its stacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from stormsail.supervisor.evidence.found import Found, Target
from stormsail.workers.stacks import STACKS_SIGNAL, stacks_file

_LOG_TAIL_BYTES = 16_000
_STACKS_BYTES = 400_000
_SETTLED_S = 0.2
_POLL_S = 0.05


def look_here(targets: Sequence[Target], limit_s: float) -> list[Found]:
    """Look at processes of this machine, all at once.

    Args:
        targets: Which.
        limit_s: Seconds for all of it.

    Returns:
        What was found, in the order of `targets`; never an error.
    """
    deadline = time.monotonic() + limit_s
    found: dict[int, Found] = {}
    threads = [
        threading.Thread(target=_into, args=(found, target, deadline), name="stormsail-look", daemon=True)
        for target in targets
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline + 1.0 - time.monotonic()))
    late = f"nothing within {limit_s:.0f} s"
    return [found.get(target.rank) or Found(target.rank, "", "", "", late, "") for target in targets]


def _into(found: dict[int, Found], target: Target, deadline: float) -> None:
    try:
        found[target.rank] = _look_at(target, deadline)
    except OSError as error:
        found[target.rank] = Found(target.rank, "", "", "", f"none: {error}", "")


def _look_at(target: Target, deadline: float) -> Found:
    tail = _tail(Path(target.log_folder) / f"rank-{target.worker_rank}.log", _LOG_TAIL_BYTES)
    status = _status(target.pid)
    if status is None:
        return Found(target.rank, "gone", "", "", "none: the process is gone", tail)
    threads = _threads(target.pid)
    stacks, source = _spied(target.pid, deadline)
    if not stacks:
        stacks, told = _signalled(target, status, deadline)
        source = "faulthandler" if stacks else f"none: py-spy: {source}; faulthandler: {told}"
    return Found(target.rank, status.get("State", ""), threads, stacks, source, tail)


def _status(pid: int) -> dict[str, str] | None:
    """`/proc/PID/status`, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _threads(pid: int) -> str:
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
        try:
            name = (task / "comm").read_text(encoding="utf-8").strip()
            state = (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            waits = (task / "wchan").read_text(encoding="utf-8").strip("0\n")
        except OSError:  # threads come and go; the kernel's wait channel is not for everybody
            continue
        lines.append(f"{task.name} {name}: {state} {waits}".rstrip())
    return "\n".join(lines)


def _spied(pid: int, deadline: float) -> tuple[str, str]:
    """Stacks by py-spy and its name, or "" and why not."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        return "", "not installed"
    try:
        done = subprocess.run(  # noqa: S603 - the program is py-spy, the argument a number
            [program, "dump", "--pid", str(pid), "--nonblocking"],
            capture_output=True,
            text=True,
            timeout=max(0.1, (deadline - time.monotonic()) * 0.7),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", "too slow"
    if done.returncode != 0:
        return "", (done.stderr.strip().splitlines() or ["failed"])[-1]
    # It begins with the command line, which may hold what is nobody's business.
    return done.stdout[max(0, done.stdout.find("\nPython v")) :].lstrip(), "py-spy"


def _signalled(target: Target, status: dict[str, str], deadline: float) -> tuple[str, str]:
    """Stacks by the worker's own handler and "", or "" and why not."""
    path = stacks_file(Path(target.log_folder), target.worker_rank)
    if status.get("State", "")[:1] in ("T", "t"):
        return "", "a stopped process answers no signal"
    caught = int(status.get("SigCgt", "0"), 16) >> (STACKS_SIGNAL - 1) & 1
    if not caught or not path.exists():  # unhandled, the signal would end the process
        return "", "the process has no handler yet"
    begin = path.stat().st_size
    os.kill(target.pid, STACKS_SIGNAL)
    _wait_until_written(path, begin, deadline)
    with path.open("rb") as stream:
        stream.seek(begin)
        text = stream.read(_STACKS_BYTES).decode(errors="replace")
    return text, "" if text else "no answer"


def _wait_until_written(path: Path, begin: int, deadline: float) -> None:
    size, since = begin, time.monotonic()
    while time.monotonic() < deadline and not (size > begin and time.monotonic() - since > _SETTLED_S):
        time.sleep(_POLL_S)
        now = path.stat().st_size
        if now != size:
            size, since = now, time.monotonic()


def _tail(path: Path, size: int) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - size))
            return stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
