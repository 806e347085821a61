"""Follows a sweep from its storage until it is done."""

from __future__ import annotations

import threading
import time
from typing import TextIO

from stormsail.platform.console import emit
from stormsail.tuning.capacity import eta_s
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.sweep import progress_line, read_answer


def watch_sweep(records: SweepRecords, *, out: TextIO, every_s: float) -> None:
    """Write a line whenever a trial was finished; returns when all are. Ctrl-C ends the watching only.

    Args:
        records: The sweep's.
        out: Where to.
        every_s: Seconds between two looks.
    """
    pause = threading.Event()
    answer = read_answer(records)
    started, first, total = time.monotonic(), answer.done, answer.total
    shown = -1
    while True:
        # Looking costs one listing; the records themselves are read at the end.
        done = min(records.count(), total)
        if done != shown:
            shown = done
            left = eta_s(done=done - first, total=total - first, spent_s=time.monotonic() - started)
            emit(progress_line(answer.name, done, total, left), stream=out)
        if done >= total:
            return
        pause.wait(every_s)
