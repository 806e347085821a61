"""Which process a pid really meant: pids are used again, so a process is known by its boot and start time too."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot of one machine.

    Attributes:
        pid: Its number.
        machine: Host name.
        boot_id: The kernel's name for this boot ("" where the system has none).
        started: Start time in kernel ticks since boot ("" where the system does not tell).
    """

    pid: int
    machine: str
    boot_id: str
    started: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this pid now; None if there is none or it has ended and waits to be reaped."""
        started = _start_time(pid)
        return None if started is None else cls(pid, socket.gethostname(), boot_id(), started)

    def is_alive(self) -> bool:
        """Whether exactly this process runs on this machine now."""
        return ProcessIdentity.of(self.pid) == self

    def is_elsewhere(self) -> bool:
        """Whether it belongs to another machine, so that nothing can be said about it here."""
        return self.machine != socket.gethostname()


def boot_id() -> str:
    """The kernel's name for this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def _start_time(pid: int) -> str | None:
    if not Path("/proc/self/stat").exists():
        return "" if _answers_signals(pid) else None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name stands in parentheses and may hold anything; what follows it is regular.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in ("Z", "X") else fields[18]


def _answers_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
