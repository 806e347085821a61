"""The journal's file on this machine: one event a line, flushed to the disk before anybody acts on it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from stormsail.platform.errors import StorageError
from stormsail.platform.journal_events import Entry, read_entry
from stormsail.platform.storage.local_files import make_folder, sync_folder, told_clearly

_log = logging.getLogger("stormsail.journal")


class JournalFile:
    """Reads and extends the file; used under the journal's lock.

    Args:
        path: The file; created with its folder by the first append.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size_bytes: int | None = None

    def read(self) -> list[Entry]:
        """All whole events. A last line that a dying writer left unfinished is not one of them.

        Raises:
            StorageError: A line before the last is damaged.
        """
        entries, _ = self._scan()
        return entries

    def append(self, entry: Entry) -> None:
        """Add an event; on return it survives a power cut. Adds nothing if it fails.

        Raises:
            StorageError: The disk is full, read-only or gone.
        """
        with told_clearly(str(self.path)):
            if self._size_bytes is None:
                self._prepare()
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                self._extend(handle, entry.body + b"\n")
            finally:
                os.close(handle)

    def set_aside(self, name: str) -> Path:
        """Rename the file, so that the next append begins a new one; returns where it lies now."""
        with told_clearly(str(self.path)):
            target = next(path for path in self._asides(name) if not path.exists())
            self.path.replace(target)
            sync_folder(self.path.parent)
        self._size_bytes = None
        return target

    def _asides(self, name: str) -> list[Path]:
        # One more than there are files in the folder is always enough.
        count = len(list(self.path.parent.iterdir())) + 1
        return [self.path.with_name(f"{self.path.name}.{name}.{number}") for number in range(1, count + 1)]

    def _prepare(self) -> None:
        make_folder(self.path.parent)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _, size_bytes = self._scan()
            torn_bytes = os.fstat(handle).st_size - size_bytes
            if torn_bytes:  # it would spoil the next line
                _log.warning("journal.torn_line file=%s bytes=%d", self.path, torn_bytes)
                os.ftruncate(handle, size_bytes)
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(self.path.parent)
        self._size_bytes = size_bytes

    def _extend(self, handle: int, line: bytes) -> None:
        size_bytes = self._size_bytes or 0
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        except OSError:
            self._size_bytes = None  # if cutting it fails too, the next append looks again
            os.ftruncate(handle, size_bytes)
            raise
        self._size_bytes = size_bytes + len(line)

    def _scan(self) -> tuple[list[Entry], int]:
        """The whole events, and the size of the file up to their end."""
        with told_clearly(str(self.path)):
            content = self.path.read_bytes() if self.path.exists() else b""
        *lines, _ = content.split(b"\n")
        entries: list[Entry] = []
        size_bytes = 0
        for number, line in enumerate(lines, start=1):
            try:
                entries.append(read_entry(line, where=f"{self.path}, line {number}"))
            except StorageError as error:
                if number == len(lines):
                    break  # a power cut can leave a line's length without its bytes
                error.todo = "Move the file away; what the store has of the journal is kept."
                raise
            size_bytes += len(line) + 1
        return entries, size_bytes
