"""The run's memory of what happened and what was decided: numbered events that are never changed.

An event goes to a flushed file on this machine first and then to the store, as `journal/<8 digits>.json`
by conditional put. The number is the fence: if somebody else has written it, this writer is not the only
one and must stop. While the store is away, events wait in the file and follow later, in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from stormsail.platform.errors import (
    FencedError,
    PreconditionFailedError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.events import Entry, Event, decode, encode, event_key, event_number
from stormsail.platform.journal_file import JournalFile
from stormsail.platform.storage.store import ObjectStore

PREFIX = "journal/"

_READERS = 8
_HOLD_OFF_S = 10.0
_RETRY_S = 0.5
_log = structlog.get_logger("stormsail.journal")


class Journal:
    """Appends events; safe from any thread. Made by `Journal.open`.

    Args:
        store: The run's store.
        file: The local file.
        writer: Who writes: one name per claim on the run.
        next_number: Number of the next event.
        unsent: Events that are in the file and not yet in the store.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        store: ObjectStore,
        file: JournalFile,
        *,
        writer: str,
        next_number: int = 1,
        unsent: tuple[Entry, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._file = file
        self._writer = writer
        self._next_number = next_number
        self._unsent = deque(unsent)
        self._clock = clock
        self._sleep = sleep
        self._fence: FencedError | None = None
        self._no_try_before_s = 0.0
        self._state = threading.Lock()  # numbering, the file, and what is unsent; never held while sending
        self._sending = threading.Lock()  # one sender at a time, so that the store has no hole
