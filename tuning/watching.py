"""Follows a sweep from its storage until it is done, or until nobody runs it any more."""

from __future__ import annotations

import threading
import time
from typing import TextIO

from stormsail.platform.console import emit
from stormsail.platform.errors import TryLaterError
from stormsail.platform.lease import live_owner
from stormsail.platform.storage.store import ObjectStore
from stormsail.tuning.capacity import eta_s
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.sweep import progress_line, read_answer

_LOOKS = 2  # a sweep that begins has its plan a moment before its lease


def watch_sweep(records: SweepRecords, *, out: TextIO, every_s: float) -> None:
    """Write a line whenever a trial was finished; returns when all are. Ctrl-C ends the watching only.

    Args:
        records: The sweep's.
        out: Where to.
        every_s: Seconds between two looks.

    Raises:
        TryLaterError: Trials are left, and the process that ran them has ended or is silent.
    """
    pause = threading.Event()
    answer = read_answer(records)
    started, first, total = time.monotonic(), answer.done, answer.total
    shown, alone = -1, 0
    owner = OwnerWatch(records.store)
    while True:
        alone = alone + 1 if owner.gone(time.monotonic()) else 0
        # Looking costs one listing; the records themselves are read at the end.
        done = min(records.count(), total)
        if done != shown:
            shown = done
            left = eta_s(done=done - first, total=total - first, spent_s=time.monotonic() - started)
            emit(progress_line(answer.name, done, total, left), stream=out)
        if done >= total:
            return
        if alone >= _LOOKS:
            raise TryLaterError(
                f"nobody runs this sweep any more: {done} of {total} trials are measured",
                where=answer.name,
                todo="go on with it by the same `stormsail sweep FILE`: what was measured is kept",
            )
        pause.wait(every_s)


class OwnerWatch:
    """Whether a sweep's driver lives, by its lease; no two machines' clocks are compared.

    Args:
        store: The sweep's own place.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._renewed_s: float | None = None
        self._since = 0.0

    def gone(self, now: float) -> bool:
        """Whether it gave the lease back, is dead on this machine, or renewed nothing for as long as a lease is valid.

        Args:
            now: Seconds of a clock that only grows.
        """
        held = live_owner(self._store, now=0.0)  # by its own clock it never runs out so
        if held is None:
            return True
        if held.renewed_s != self._renewed_s:
            self._renewed_s, self._since = held.renewed_s, now
        return now - self._since > held.ttl_s
