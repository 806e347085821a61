"""What is looked for when a rank hangs, and what was found of it: values, and the order in which they are read; pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One worker process to look at.

    Attributes:
        rank: Its rank.
        worker_rank: Its index in the attempt, which its files are named by.
        pid: Its process id on its node.
        node_ip: Its node.
        hostname: That node's name.
        log_folder: Where the attempt's logs are on that node.
    """

    rank: int
    worker_rank: int
    pid: int
    node_ip: str
    hostname: str
    log_folder: str


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of one process.

    Attributes:
        rank: Its rank.
        state: The kernel's word for it ("S (sleeping)", "T (stopped)"), "gone", or "" where nobody could look.
        threads: One line for each thread: its name, its state and what it waits for in the kernel.
        stacks: The Python stacks of all threads as text, or "".
        source: Who told the stacks: "py-spy" or "faulthandler"; or why there are none.
        log_tail: The end of its log.
    """

    rank: int
    state: str
    threads: str
    stacks: str
    source: str
    log_tail: str

    @property
    def stopped(self) -> bool:
        """Whether the process was stopped by a signal, or by a debugger."""
        return self.state[:1] in ("T", "t")

    @property
    def gone(self) -> bool:
        """Whether there is no such process any more."""
        return self.state == "gone" or self.state[:1] == "Z"


def render(target: Target, found: Found) -> str:
    """All that was found of one process, as one text file for people."""
    head = f"rank {target.rank}: worker {target.worker_rank}, pid {target.pid} on {target.hostname} ({target.node_ip})"
    parts = [
        f"{head}\nprocess: {found.state or 'could not be looked at'}",
        f"== stacks ({found.source})\n{found.stacks.rstrip() or 'none'}",
        f"== threads in the kernel\n{found.threads.rstrip() or 'none'}",
        f"== end of its log\n{found.log_tail.rstrip() or 'nothing'}",
    ]
    return "\n\n".join(parts) + "\n"
