"""Metric rows on the run's storage: the record from which reports and mirrors are made.

Rows are collected and written as numbered objects, `series/<8 digits>.jsonl`. A store that is away never
stops anybody: rows wait in a bounded buffer, and those that find no room are counted. Each row is a sealed line: losses
are what a repeated step is compared with, so a digit that turned must not pass for another result.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stormsail.platform import exact_json
from stormsail.platform.errors import PreconditionFailedError, StorageError
from stormsail.platform.exact_json import Json
from stormsail.platform.sealed_line import seal_line, unseal_line
from stormsail.platform.storage.store import ObjectStore

PREFIX = "series/"

_DIGITS = 8
_KEY = re.compile(rf"{PREFIX}(\d{{{_DIGITS}}})\.jsonl")
_ROWS_PER_OBJECT = 10_000
_TRIES = 100
_log = logging.getLogger("stormsail.series")

Damaged = Callable[[StorageError], None]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows on their way: once tried under a number, the bytes stay the same, so that a retry is recognised."""

    body: bytes
    rows: int


class SeriesWriter:
    """Writes rows; safe from any thread.

    Args:
        store: The run's store.
        capacity: Most rows that wait; the oldest give way.
    """

    def __init__(self, store: ObjectStore, *, capacity: int = 200_000) -> None:
        self._store = store
        self._capacity = capacity
        self._rows: deque[bytes] = deque()
        self._batch: _Batch | None = None
        self._next_number: int | None = None
        self._dropped = 0
        self._state = threading.Lock()
        self._flushing = threading.Lock()

    @property
    def dropped(self) -> int:
        """Rows lost for want of room."""
        with self._state:
            return self._dropped

    @property
    def pending(self) -> int:
        """Rows that are not in the store."""
        with self._state:
            return len(self._rows) + (self._batch.rows if self._batch else 0)

    def add(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Take rows of JSON values; touches no store."""
        lines = [seal_line(exact_json.dumps(dict(row))) for row in rows]
        with self._state:
            self._rows.extend(lines)
            excess = max(len(self._rows) - self._capacity, 0)
            for _ in range(excess):
                self._rows.popleft()
            self._dropped += excess
            dropped = self._dropped
        if excess:
            _log.warning("series.dropped rows=%d dropped=%d capacity=%d", excess, dropped, self._capacity)

    def flush(self) -> int:
        """Write what waits; returns how many rows still do because the store is away (0: none)."""
        with self._flushing:
            try:
                while (batch := self._next_batch()) is not None:
                    self._write(batch)
                    with self._state:
                        self._batch = None
            except StorageError as error:
                _log.warning("series.unsent pending=%d dropped=%d why=%r", self.pending, self.dropped, error.what)
        return self.pending

    def _next_batch(self) -> _Batch | None:
        with self._state:
            if self._batch is None and self._rows:
                count = min(len(self._rows), _ROWS_PER_OBJECT)
                lines = [self._rows.popleft() for _ in range(count)]
                self._batch = _Batch(b"\n".join(lines) + b"\n", count)
            return self._batch

    def _write(self, batch: _Batch) -> None:
        for _ in range(_TRIES):
            if self._next_number is None:
                self._next_number = _newest(self._store) + 1
            key = f"{PREFIX}{self._next_number:0{_DIGITS}d}.jsonl"
            try:
                self._store.put(key, batch.body, if_none_match=True)
            except PreconditionFailedError:
                # Ours, if the answer to an earlier try was lost; else another writer's, and we take the next.
                if self._store.get(key) != batch.body:
                    self._next_number = None
                    continue
            self._next_number += 1
            return
        raise StorageError(f"Other writers took {_TRIES} numbers in a row", where=f"{self._store.url}/{PREFIX}")


def read_series(
    store: ObjectStore, *, after: str | None = None, damaged: Damaged | None = None
) -> Iterator[dict[str, Json]]:
    """All rows in the order in which they were written.

    Args:
        store: The run's store.
        after: Leave out objects up to this key.
        damaged: Told of each row that cannot be read, which is left out; None: raise instead.

    Raises:
        StorageError: A row is damaged, or the store failed.
    """
    for _, rows in iter_series_objects(store, after=after, damaged=damaged):
        yield from rows


def iter_series_objects(
    store: ObjectStore, *, after: str | None = None, damaged: Damaged | None = None
) -> Iterator[tuple[str, Iterator[dict[str, Json]]]]:
    """As `read_series`, object by object: its key and its rows, so that a reader can remember where it was."""
    for info in store.list(PREFIX, start_after=after):
        if _KEY.fullmatch(info.key):
            yield info.key, _rows_of(store, info.key, damaged)


def _rows_of(store: ObjectStore, key: str, damaged: Damaged | None) -> Iterator[dict[str, Json]]:
    # Not `splitlines`: a minus sign is one bit away from a carriage return.
    for number, line in enumerate(store.get(key).removesuffix(b"\n").split(b"\n"), start=1):
        try:
            yield _row_of(line, f"{store.url}/{key}, line {number}")
        except StorageError as error:
            if damaged is None:
                raise
            damaged(error)


def _row_of(line: bytes, where: str) -> dict[str, Json]:
    try:
        row = exact_json.loads(unseal_line(line))
    except ValueError as error:
        raise StorageError("The metric rows are damaged", where=where) from error
    if not isinstance(row, dict):
        raise StorageError("The metric rows are damaged: not an object", where=where)
    return row


def _newest(store: ObjectStore) -> int:
    return max((int(match[1]) for info in store.list(PREFIX) if (match := _KEY.fullmatch(info.key))), default=0)
