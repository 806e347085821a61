"""Where the time of a step goes: laps by name, of the present step and of the one before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

STEP = "step"


class Stopwatch:
    """Adds up laps; one thread.

    Attributes:
        before: Laps of the step before, in seconds, and under `STEP` its whole time; empty where there was none.
    """

    def __init__(self) -> None:
        self.before: Mapping[str, float] = {}
        self._now: dict[str, float] = {}
        self._started: float | None = None

    def begin(self) -> None:
        """A step begins: the one before is over."""
        now = time.perf_counter()
        self.before = {**self._now, STEP: now - self._started} if self._started is not None else {}
        self._now, self._started = {}, now

    def reset(self) -> None:
        """What was until now was no step."""
        self.before, self._now, self._started = {}, {}, None

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Count the time of this block under a name."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - begun)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave the time of this block out: it belongs to no step."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            if self._started is not None:
                self._started += time.perf_counter() - begun

    def add(self, name: str, seconds: float) -> None:
        """Count seconds under a name, or take them off it."""
        self._now[name] = self._now.get(name, 0.0) + seconds

    def lapped(self, name: str) -> float:
        """The seconds counted under a name in the present step."""
        return self._now.get(name, 0.0)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the step began."""
        return 0.0 if self._started is None else time.perf_counter() - self._started
