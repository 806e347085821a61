"""Describing what ended an attempt: the first cause, not the loudest echo (pure).

When one rank is lost, every other rank raises too, because its collective broke. The headline is the failure that
came first and was not caused by another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.platform.errors import ConfigError, InternalError, UserCodeError
from stormsail.platform.messages import FaultKind, WorkerFailure
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.ladder import Fault

# What a worker's own code raises comes again, unlike the loss of a process, a peer or the store.
_DETERMINISTIC = (InternalError.exit_code, ConfigError.exit_code, UserCodeError.exit_code)
_ADDRESSES = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Described:
    """The first cause of a failed attempt.

    Attributes:
        kind: What kind of fault the ladder gets to see.
        rank: Rank it happened on, or -1 for the group.
        step: Step that the run had reached; -1 before the first.
        error: One line.
        details: Traceback text, or "".
        exit_code: Exit code of the run, should this fault end it.
        time_s: When it was noticed, in seconds since the epoch.
    """

    kind: FaultKind
    rank: int
    step: int
    error: str
    details: str
    exit_code: int
    time_s: float

    def for_ladder(self) -> Fault:
        """The fault as the ladder needs it."""
        return Fault(
            kind=self.kind,
            step=self.step,
            onset=self.step,
            time_s=self.time_s,
            signature=_ADDRESSES.sub("0x", self.error),
            detail=self.error,
        )


def describe(
    result: AttemptResult,
    failures: Sequence[WorkerFailure],
    *,
    step: int,
    now_s: float,
    hang: str = "",
    stuck: int = -1,
) -> Described:
    """Find the first cause.

    Args:
        result: How Ray saw the attempt end.
        failures: What workers said before they died, in any order.
        step: Step that the run had reached.
        now_s: Time of noticing.
        hang: Why the supervisor itself ended the attempt, or "".
        stuck: The rank that it ended it for.
    """
    if hang:
        return Described(FaultKind.HANG, stuck, step, hang, "", 1, now_s)
    for origin in ("user", "ours"):
        found = sorted((f for f in failures if f.origin == origin), key=lambda f: f.time_s)
        if found:
            return _from_worker(found[0])
    silent = [rank for rank in result.died if rank not in {failure.rank for failure in failures}]
    if silent:
        what = f"the process of rank {silent[0]} died without a word (killed, crashed, or its node is gone)"
        return _lost(silent[0], step, what, now_s)
    if result.errors:
        rank, text = min(result.errors.items())
        return _lost(rank, step, text, now_s)
    peer = min(failures, key=lambda f: f.time_s, default=None)
    return _lost(
        -1 if peer is None else peer.rank, step, peer.error if peer else "the attempt ended without a word", now_s
    )


def _from_worker(failure: WorkerFailure) -> Described:
    certain = failure.origin == "user" or failure.exit_code in _DETERMINISTIC
    return Described(
        kind=FaultKind.USER_CODE if certain else FaultKind.PROCESS,
        rank=failure.rank,
        step=failure.step,
        error=failure.error,
        details=failure.details,
        exit_code=UserCodeError.exit_code if failure.origin == "user" else failure.exit_code,
        time_s=failure.time_s,
    )


def _lost(rank: int, step: int, error: str, now_s: float) -> Described:
    return Described(FaultKind.PROCESS, rank, step, error, "", 1, now_s)
