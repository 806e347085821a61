"""The time limit of one trial. Being over it is a fault, never divergence: the trial stays unfinished."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stormsail.platform.errors import TryLaterError

SLACK_S = 600.0
"""What a trial may take beyond its limit, to start, and to stop when it is asked to; then its process is ended."""


class OverTimeError(TryLaterError):
    """A trial has computed for longer than it may. What it has reached is kept."""

    @classmethod
    def at(cls, step: int, steps: int, limit_s: float) -> OverTimeError:
        """Of a trial that had completed so many of its steps."""
        return cls(
            f"over its time limit of {limit_s:g} s after {step} of {steps} steps",
            todo="raise trials.time_limit_s: the same command goes on from there",
        )


@contextmanager
def process_ends_after(seconds: float, what: str) -> Iterator[None]:
    """End this process if the block takes longer: what hangs in a read or a collective looks at no clock.

    Ray Tune takes that for a worker that died, and starts the trial again from its checkpoint, as often as it may.
    """

    def end() -> None:
        print(f"{what}: nothing for {seconds:g} s; its process is ended", file=sys.stderr, flush=True)  # noqa: T201 - the worker's log
        os._exit(OverTimeError.exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
