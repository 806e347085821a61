"""How long an operation on a store is tried again, and how the waits between tries grow.

botocore repeats single requests a little by itself; this repeats whole operations (a body that broke
off, a store that is busy for a while), with jitter, so that many ranks do not come back in step.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from stormsail.platform.errors import StorageError

_log = logging.getLogger("stormsail.storage")


class FaultClass(Enum):
    """What a failed request means for the next try."""

    FINAL = auto()  # trying again cannot help
    BUSY = auto()  # the store is there, but could not do it now; the request may have been carried out
    AWAY = auto()  # nobody answers at the endpoint
    EXPIRED = auto()  # temporary credentials ran out; new ones may be there
    UNKNOWN_KEYS = auto()  # the keys are wrong, or were replaced since they were read


@dataclass(frozen=True, slots=True)
class Fault:
    """One failed request.

    Attributes:
        kind: What it means for the next try.
        error: What the caller is told if there is none.
    """

    kind: FaultClass
    error: StorageError


@dataclass(frozen=True, slots=True)
class Patience:
    """How long whole operations are tried again; the last try may end one request limit later.

    Attributes:
        busy_s: Limit while the store answers with "slow down" or an error of its own, or breaks off.
        away_s: Limit while nobody answers at the endpoint.
        first_wait_s: Longest first wait; it doubles from try to try.
        longest_wait_s: Longest wait of all.
    """

    busy_s: float = 60.0
    away_s: float = 15.0
    first_wait_s: float = 0.25
    longest_wait_s: float = 5.0

    def limit_s(self, kind: FaultClass) -> float:
        """Seconds from the first try after which a fault of this kind is final."""
        limits = {FaultClass.BUSY: self.busy_s, FaultClass.AWAY: self.away_s, FaultClass.EXPIRED: self.busy_s}
        return limits.get(kind, 0.0)

    def wait_s(self, failures: int, jitter: float) -> float:
        """The wait after so many failures (from 1), spread over its upper half by `jitter` in [0, 1)."""
        longest = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 30))
        return longest * (0.5 + 0.5 * jitter)


class Retries:
    """Counts the tries of one operation; not shared between threads.

    Args:
        patience: The limits.
        operation: What is tried, for messages.
        where: Where it is tried.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        patience: Patience,
        operation: str,
        where: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.failures = 0
        self._patience = patience
        self._operation = operation
        self._where = where
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._random = random.Random()  # noqa: S311 (spreads waits; each process must draw differently)

    def failed(self, fault: Fault) -> None:
        """Wait before the next try, or raise the fault's error if there shall be none."""
        self.failures += 1
        if fault.kind is FaultClass.FINAL:
            raise fault.error
        tried_s = self._clock() - self._began
        wait_s = self._patience.wait_s(self.failures, self._random.random())
        if tried_s + wait_s > self._patience.limit_s(fault.kind):
            raise self._given_up(fault.error, tried_s)
        _log.warning(
            "storage.retrying operation=%s where=%s failures=%d wait_s=%.2f tried_s=%.1f limit_s=%g why=%r",
            self._operation,
            self._where,
            self.failures,
            wait_s,
            tried_s,
            self._patience.limit_s(fault.kind),
            fault.error.what,
        )
        self._sleep(wait_s)

    def _given_up(self, error: StorageError, tried_s: float) -> StorageError:
        what = f"{error.what}; {self._operation} was tried for {tried_s:.0f} s"
        return type(error)(what, where=error.where, todo=error.todo)
