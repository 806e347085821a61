"""Which rank is to blame for a hang, from what was found of all of them; pure.

When one rank stops, the others wait for it in a collective, and are as late as it is. So the one to blame is a
process that is stopped or gone; or the one that has done fewer collectives than the others; or the one whose training
thread is not in a collective while those of the others are.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stormsail.supervisor.evidence.found import Found

# The function of every worker's training thread, at the bottom of its stack.
_TRAINING = "worker_main"
_THREAD = re.compile(r"^(?:Current thread |Thread )", re.MULTILINE)
_SPIED = re.compile(r"^    (?P<function>\S+) \((?P<file>.*):(?P<line>\d+)\)$")
_DUMPED = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
_COLLECTIVE_FILES = ("torch/distributed/distributed_c10d.py", "deepspeed/comm/")
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python")
_SHOWN = 90


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack.

    Attributes:
        function: Its name.
        file: Where it is.
        line: The line that it is at.
    """

    function: str
    file: str
    line: int

    @property
    def collective(self) -> bool:
        """Whether it is a call that waits for other ranks."""
        return any(part in self.file for part in _COLLECTIVE_FILES)

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the evidence says.

    Attributes:
        rank: The rank to blame, or -1 if the evidence blames none.
        text: Why, in one line.
        places: Where each rank's training thread is, by rank, in a few words.
    """

    rank: int
    text: str
    places: Mapping[int, str]


def training_stack(stacks: str) -> list[Frame]:
    """The calls of the training thread, innermost first, from py-spy's or faulthandler's text; [] if it is not there."""
    edges = [*(match.start() for match in _THREAD.finditer(stacks)), len(stacks)]
    for begin, end in itertools.pairwise(edges):
        frames = [frame for line in stacks[begin:end].splitlines() if (frame := _frame(line)) is not None]
        if any(frame.function == _TRAINING for frame in frames):
            return frames
    return []


def find_blame(found: Sequence[Found], flights: Mapping[int, str]) -> Finding:
    """Blame a rank, or none.

    Args:
        found: What was seen of each process.
        flights: The flight recorder's JSON by rank, from those that could give it.
    """
    stacks = {item.rank: training_stack(item.stacks) for item in found}
    places = {item.rank: _place(item, stacks[item.rank]) for item in found}
    rank, text = _dead(found) or _behind(flights) or _outside(stacks) or (-1, "")
    where = f"; it is {places[rank]}" if rank in places and "process" not in text else ""
    return Finding(rank, f"{text}{where}" if text else "the evidence blames no single rank", places)


def last_collective(flight: str) -> int | None:
    """The number of the newest collective in a flight record, or None if it tells none."""
    try:
        entries = json.loads(flight)["entries"]
        return max((int(entry["collective_seq_id"]) for entry in entries), default=None)
    except (ValueError, KeyError, TypeError):
        return None


def _dead(found: Sequence[Found]) -> tuple[int, str] | None:
    for item in found:
        if item.gone:
            return item.rank, f"the process of rank {item.rank} is gone"
        if item.stopped:
            return item.rank, f"the process of rank {item.rank} is stopped (by a signal or a debugger)"
    return None


def _behind(flights: Mapping[int, str]) -> tuple[int, str] | None:
    """The rank that has begun fewer collectives than all others, if there is exactly one."""
    numbers = {rank: number for rank, text in flights.items() if (number := last_collective(text)) is not None}
    lowest, highest = min(numbers.values(), default=0), max(numbers.values(), default=0)
    behind = [rank for rank, number in numbers.items() if number == lowest]
    if lowest == highest or len(behind) != 1:
        return None
    return behind[0], f"rank {behind[0]} has begun {lowest} collectives, others {highest}"


def _outside(stacks: Mapping[int, list[Frame]]) -> tuple[int, str] | None:
    """The rank that waits for nobody while all others wait in a collective."""
    known = {rank: any(frame.collective for frame in frames) for rank, frames in stacks.items() if frames}
    outside = [rank for rank, waits in known.items() if not waits]
    if len(outside) != 1 or len(known) <= 1:
        return None
    return outside[0], f"rank {outside[0]} is in no collective while the others wait in one"


def _place(item: Found, frames: list[Frame]) -> str:
    if item.gone or item.stopped:
        state = "gone" if item.gone else "stopped"
        return f"{state}, last in {_named(frames)}" if frames else state
    if not frames:
        return "unknown"
    waits = next((frame for frame in frames if frame.collective), None)
    return _named(frames) if waits is None else f"waiting in {waits.function}, called from {_named(frames)}"


def _named(frames: list[Frame]) -> str:
    """The innermost call that is no library's, where there is one: what a person recognises."""
    own = next((frame for frame in frames if not any(part in frame.file for part in _LIBRARIES)), frames[0])
    return str(own)[:_SHOWN]


def _frame(line: str) -> Frame | None:
    match = _SPIED.match(line) or _DUMPED.match(line)
    return Frame(match["function"], match["file"], int(match["line"])) if match else None
