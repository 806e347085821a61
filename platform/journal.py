"""The run's memory of what happened and what was decided: numbered events that are never changed.

An event goes to a flushed file on this machine first and then to the store, as `journal/<8 digits>.json`
by conditional put. The number is the fence: if somebody else has written it, this writer is not the only
one and must stop. While the store is away, events wait in the file and follow later, in order.

Each event carries its own CRC and hash. One turned bit is turned back; an object that is worse off, or gone, is taken from the
file, where that certainly holds the same event; else nobody knows what was decided there, and the reader stops.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stormsail.platform.errors import (
    FencedError,
    ObjectMissingError,
    PreconditionFailedError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.exact_json import Json
from stormsail.platform.journal_events import PREFIX, Entry, Event, event_key, event_number, make_entry, read_entry
from stormsail.platform.journal_file import JournalFile
from stormsail.platform.storage.store import ObjectStore

__all__ = ["PREFIX", "Event", "Journal"]

_READERS = 8
_HOLES = 100  # so many that a list lacks are asked for one by one
_HOLD_OFF_S = 10.0  # after a failure, appends do not bother a store that is away for this long
_RETRY_S = 0.5
_TODO = (
    "Start the run on the machine that wrote it, whose journal.jsonl may have the event, or restore the object from a "
    "backup; else start afresh under another name, and export what you need from its checkpoints."
)
_log = logging.getLogger("stormsail.journal")


class Journal:
    """Appends events; safe from any thread.

    The constructor begins an empty journal; `Journal.open` continues one.

    Args:
        store: The run's store.
        local_file: The file on this machine.
        writer: Who writes; a process that takes the run over has another name.
        history: Events that are in the store already.
        unsent: Events that are in the file and not yet in the store.
        mended: Keys of objects that were damaged or missing, and were written once more.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        store: ObjectStore,
        local_file: Path,
        *,
        writer: str,
        history: tuple[Event, ...] = (),
        unsent: tuple[Entry, ...] = (),
        mended: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._file = JournalFile(local_file)
        self._writer = writer
        self.mended = mended
        self._history = (*history, *(entry.event for entry in unsent))
        self._next_number = len(self._history) + 1
        self._unsent = deque(unsent)
        self._clock = clock
        self._sleep = sleep
        self._fence: FencedError | None = None
        self._no_try_before_s = clock()
        self._problem = ""
        self._state = threading.Lock()  # numbers, the file and what is unsent; never held while sending
        self._sending = threading.Lock()  # one sender at a time: the store never has a hole

    @classmethod
    def open(cls, store: ObjectStore, local_file: Path, *, writer: str, deadline_s: float = 0.0) -> Journal:
        """Continue the journal from its newest event, after sending what this writer had not sent yet.

        Events that are damaged in the store, and can be known all the same, are written there once more.

        Args:
            store: The run's store.
            local_file: The file on this machine, there or not.
            writer: Who writes from now on.
            deadline_s: How long to wait for the store to take what was unsent; the rest stays pending.

        Raises:
            FencedError: Somebody else wrote a number that this writer has given to another event.
            StorageError: The journal in the store or the file is damaged.
        """
        file = JournalFile(local_file)
        found = _read_entries(store, after=0, spare=file.read())
        unsent = _reconcile(found.entries, file, writer)
        history = tuple(entry.event for entry in found.entries)
        for entry in found.mended:
            store.put(event_key(entry.event.number), entry.body)  # whoever else does so writes the same bytes
        mended = tuple(event_key(entry.event.number) for entry in found.mended)
        journal = cls(store, local_file, writer=writer, history=history, unsent=unsent, mended=mended)
        journal.flush(deadline_s)
        return journal

    @staticmethod
    def read(store: ObjectStore, *, after: int = 0) -> list[Event]:
        """The events in the store, those with a number above `after`, in order.

        Raises:
            StorageError: A number is missing, or an event is damaged in more than a bit.
        """
        return [entry.event for entry in _read_entries(store, after=after).entries]

    @property
    def history(self) -> tuple[Event, ...]:
        """The events before this object was opened, what it re-sent included."""
        return self._history

    @property
    def pending(self) -> int:
        """Events that are in the file and not in the store."""
        with self._state:
            return len(self._unsent)

    @property
    def problem(self) -> str:
        """Why the store did not take the last event that was tried, or ""."""
        return self._problem

    def append(
        self,
        kind: str,
        *,
        time_s: float,
        generation: int,
        step: int | None = None,
        attempt: int | None = None,
        data: Mapping[str, object] | None = None,
        durable: bool = False,
        deadline_s: float = 0.0,
    ) -> Event:
        """Record an event: in the file when this returns, and in the store unless it is away.

        Args:
            kind: Dotted words.
            time_s: Seconds since the epoch.
            generation: The generation in force.
            step: The step that it concerns.
            attempt: The attempt that it concerns.
            data: JSON values; tuples become lists.
            durable: Wait for the store.
            deadline_s: How long to wait then, in seconds; one try may end somewhat later.

        Raises:
            FencedError: Another writer has taken the run over; nothing may be written any more.
            StorageUnavailableError: `durable`, and the store was away for `deadline_s`. The event stays in the
                file and is sent later.
            StorageDeniedError: `durable`, and the store refuses.
            StorageError: The file cannot be written; the event is not recorded.
        """
        with self._state:
            self._check_fence()
            event = Event(self._next_number, time_s, kind, generation, step, attempt, _as_json(data))
            entry = make_entry(event, self._writer)
            self._file.append(entry)
            self._unsent.append(entry)
            self._next_number += 1
        if durable:
            self._send_until(entry.event.number, deadline_s)
        elif self._clock() >= self._no_try_before_s:
            self._try_to_send(wait_s=0.0)
        return entry.event

    def flush(self, deadline_s: float) -> int:
        """Send what is pending, waiting up to `deadline_s` seconds for the store; returns what is still pending.

        Raises:
            FencedError: Another writer has taken the run over.
        """
        with self._state:
            self._check_fence()
            last = self._unsent[-1].event.number if self._unsent else 0
        try:
            self._send_until(last, deadline_s)
        except FencedError:
            raise
        except StorageError as error:
            _log.warning("journal.flush_incomplete pending=%d why=%r", self.pending, error.what)
        return self.pending

    def _send_until(self, number: int, deadline_s: float) -> None:
        """Return once all events up to `number` are in the store; raises what `append` says for `durable`."""
        deadline = self._clock() + deadline_s
        while True:
            error = self._try_to_send(wait_s=max(deadline - self._clock(), 0.0))
            with self._state:
                self._check_fence()
                if not self._unsent or self._unsent[0].event.number > number:
                    return
            if isinstance(error, StorageDeniedError):
                raise error
            left_s = deadline - self._clock()
            if left_s <= 0:
                raise self._late(error, number, deadline_s)
            self._sleep(min(_RETRY_S, left_s))

    def _late(self, error: StorageError | None, number: int, deadline_s: float) -> StorageUnavailableError:
        why = error.what if error is not None else "another thread is still sending"
        what = f"Journal event {number} could not be stored within {deadline_s:g} s: {why}"
        todo = f"It is kept in {self._file.path} and is sent when the store is back."
        return StorageUnavailableError(what, where=f"{self._store.url}/{event_key(number)}", todo=todo)

    def _try_to_send(self, *, wait_s: float) -> StorageError | None:
        """Send all that is pending, once; returns what went wrong. Raises only `FencedError`.

        If another thread is sending, it sends ours too: wait for it up to `wait_s` seconds.
        """
        # Asked again after the lock is free: an event could come between the sender's last look and its release.
        while self.pending and self._sending.acquire(timeout=wait_s):
            try:
                self._drain()
                self._no_try_before_s, self._problem = self._clock(), ""
            except FencedError:
                raise
            except StorageError as error:
                self._no_try_before_s, self._problem = self._clock() + _HOLD_OFF_S, error.what
                _log.warning("journal.unsent pending=%d file=%s why=%r", self.pending, self._file.path, error.what)
                return error
            finally:
                self._sending.release()
        return None

    def _drain(self) -> None:
        while True:
            with self._state:
                if not self._unsent:
                    return
                entry = self._unsent[0]
            self._send(entry)
            with self._state:
                self._unsent.popleft()

    def _send(self, entry: Entry) -> None:
        key = event_key(entry.event.number)
        try:
            self._store.put(key, entry.body, if_none_match=True)
        except PreconditionFailedError as error:
            # An earlier try may have arrived though its answer did not; a turned bit makes no other event of it.
            held = read_entry(self._store.get(key), where=f"{self._store.url}/{key}")
            if held.body != entry.body:
                fence = _fenced(held, self._store.url)
                with self._state:
                    self._fence = fence
                raise fence from error

    def _check_fence(self) -> None:
        if self._fence is not None:
            raise self._fence


def _as_json(data: Mapping[str, object] | None) -> dict[str, Json]:
    # What is not JSON is refused when the event is encoded.
    return dict(data or {})  # type: ignore[arg-type] # checked by the encoder


@dataclass(frozen=True, slots=True)
class _Found:
    """The events in the store, and those among them whose objects are not what they should be."""

    entries: list[Entry]
    mended: list[Entry]


def _read_entries(store: ObjectStore, *, after: int, spare: Sequence[Entry] = ()) -> _Found:
    listed = store.list(PREFIX, start_after=event_key(after) if after else None)
    numbers = {number for info in listed if (number := event_number(info.key)) is not None}
    places = range(after + 1, max(numbers, default=after) + 1)
    if len(places) - len(numbers) > _HOLES:
        raise _missing(store, next(number for number in places if number not in numbers))

    # All that must be there is asked for: a list may lack what is there, and show what is not.
    with ThreadPoolExecutor(_READERS, thread_name_prefix="journal-read") as pool:
        looked = dict(zip(places, pool.map(lambda number: _read_one(store, number), places), strict=True))
    entries: dict[int, Entry] = {}
    mended: list[Entry] = []
    for number in reversed(places):
        found = looked[number]
        entry, is_whole = found if isinstance(found, tuple) else (_same_in(spare, number, entries), False)
        if entry is None:
            raise found  # type: ignore[misc] # an error, as there is no entry
        entries[number] = entry
        if not is_whole:
            mended.append(entry)
    return _Found([entries[number] for number in places], mended)


def _read_one(store: ObjectStore, number: int) -> tuple[Entry, bool] | StorageError:
    """An event and whether its object is as it was written, or what is wrong with it."""
    found = _look_at(store, number)
    # What comes damaged may lie there whole.
    return _look_at(store, number) if isinstance(found, StorageError) else found


def _look_at(store: ObjectStore, number: int) -> tuple[Entry, bool] | StorageError:
    where = f"{store.url}/{event_key(number)}"
    try:
        body = store.get(event_key(number))
    except ObjectMissingError:
        return _missing(store, number)
    try:
        entry = read_entry(body, where=where)
    except StorageError as error:
        error.todo = _TODO
        return error
    if entry.event.number != number:
        return StorageError(f"The journal is damaged: this is event {entry.event.number}", where=where, todo=_TODO)
    return entry, entry.body == body


def _missing(store: ObjectStore, number: int) -> StorageError:
    what = f"The journal is damaged: event {number} is missing, and later ones are there"
    return StorageError(what, where=f"{store.url}/{event_key(number)}", todo=_TODO)


def _same_in(spare: Sequence[Entry], number: int, later: Mapping[int, Entry]) -> Entry | None:
    """The file's event of this number, if the store certainly held the same.

    A writer sends in order. So if the file's next event is the store's next event, and one writer made both, the store
    has taken this one from the same file before.
    """
    here = {entry.event.number: entry for entry in spare}
    entry, following, stored = here.get(number), here.get(number + 1), later.get(number + 1)
    if entry is None or following is None or stored is None:
        return None
    return entry if following.body == stored.body and entry.writer == following.writer else None


def _reconcile(stored: list[Entry], file: JournalFile, writer: str) -> tuple[Entry, ...]:
    """The events that the store lacks.

    Those of another writer too, as long as nobody has written since: they happened, and the next claim must know of
    them. Where the store holds other events under their numbers, the file is set aside.
    """
    unsent: list[Entry] = []
    for entry in file.read():
        number = entry.event.number
        held = stored[number - 1] if 0 < number <= len(stored) else None
        if held is not None and held.body == entry.body:
            continue
        if held is not None and entry.writer != writer:
            kept = file.set_aside(entry.writer)
            _log.warning("journal.set_aside file=%s writer=%s first_lost=%d", kept, entry.writer, number)
            return ()
        if held is not None:
            raise _fenced(held, str(file.path))
        unsent.append(entry)
    _check_consecutive(unsent, len(stored), file)
    return tuple(unsent)


def _check_consecutive(unsent: list[Entry], newest: int, file: JournalFile) -> None:
    for expected, entry in enumerate(unsent, start=newest + 1):
        if entry.event.number != expected:
            what = (
                f"Neither the store nor this file has journal event {expected}, but event {entry.event.number} is here"
            )
            raise StorageError(what, where=str(file.path), todo="Is storage.url still the run's own?")


def _fenced(held: Entry, where: str) -> FencedError:
    what = f"Another writer ({held.writer}) has written journal event {held.event.number}: it owns this run now"
    return FencedError(what, where=where, todo="This process must stop; the other one goes on.")
