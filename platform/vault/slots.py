"""Slots: fixed pieces of shared memory that a rank copies its state into, and that survive the rank.

    slots/N         the words, as long as the rank's state; allocated whole, so that writing can never run out of memory
    slots/N.image   the record (`image.py`); there only while the words are whole
    slots/N.lease   locked by the process that may write into the slot, for as long as it lives

Reading takes a shared lock on the words and writing an exclusive one, each without waiting, so that nothing is
overwritten while it is read. Locks are the kernel's, and go with the process that held them.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stormsail.platform.checkpoint.records import seal, unseal
from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError, InternalError
from stormsail.platform.storage.local_files import told_clearly
from stormsail.platform.vault.folder import LEASE, VaultFolder
from stormsail.platform.vault.image import WORD_BYTES, ImageRecord

IMAGE = ".image"

Bytes: TypeAlias = NDArray[np.uint8]


class Slot:
    """A slot that this process writes into; in shared memory, or (without a path) in memory of its own.

    Args:
        buffer: The words, as bytes.
        path: The file, or None.
        handles: Of the words and of the lease.
    """

    def __init__(self, buffer: mmap.mmap, path: Path | None = None, handles: tuple[int, ...] = ()) -> None:
        self._map = buffer
        self._handles = handles
        self.path = path
        self.bytes: Bytes = np.frombuffer(buffer, dtype=np.uint8)
        self.record: ImageRecord | None = None

    @classmethod
    def private(cls, size_bytes: int) -> Self:
        """A slot in this process's own memory, which dies with it."""
        return cls(mmap.mmap(-1, max(size_bytes, 1)))

    @classmethod
    def lease(cls, path: Path) -> Self | None:
        """Take a slot of the vault, with the image that is in it; None if another process has it.

        Raises:
            StorageError: It is not there, or cannot be mapped.
        """
        with told_clearly(str(path)):
            lease = os.open(_lease_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _lock(lease, fcntl.LOCK_EX):
                os.close(lease)
                return None
            try:
                words = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                os.close(lease)
                raise
            slot = cls(mmap.mmap(words, os.fstat(words).st_size), path, (words, lease))
        with contextlib.suppress(CheckpointError):
            slot.record = read_record(path)
        return slot

    @property
    def words(self) -> Words:
        """All of it as 32-bit words."""
        return self.bytes[: self.bytes.size // WORD_BYTES * WORD_BYTES].view(np.uint32)

    def warm(self) -> None:
        """Have every page of it mapped, so that the first snapshot does not pay for that; any thread, without the GIL."""
        self.bytes[:: mmap.PAGESIZE].max()

    def begin(self) -> bool:
        """Give up the image that is in it and begin another; False if somebody reads it now."""
        if self.path is not None:
            if not self._handles or not _lock(self._handles[0], fcntl.LOCK_EX):
                return False
            drop_record(self.path)
        self.record = None
        return True

    def seal(self, record: ImageRecord) -> None:
        """What was begun is whole.

        Raises:
            StorageError: The record cannot be written.
        """
        if self.path is not None:
            write_record(self.path, record)
        self.record = record
        self.release()

    def release(self) -> None:
        """Others may read it, if there is an image in it."""
        if self._handles:
            fcntl.flock(self._handles[0], fcntl.LOCK_UN)

    def discard(self) -> None:
        """What is in it is no image any more."""
        self.record = None
        if self.path is not None:
            drop_record(self.path)

    def close(self) -> None:
        """Give the slot up; its image stays. Arrays of it that are in use keep the memory until they go."""
        for handle in self._handles:
            os.close(handle)
        self._handles = ()


def create(folder: VaultFolder, name: str, size_bytes: int) -> Path:
    """Make a slot of a size; for the vault's process, which knows the budget.

    Raises:
        StorageFullError: The node's shared memory has no room for it.
        StorageError: The file system refused otherwise.
    """
    path = folder.slots / name
    with told_clearly(str(path)):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, max(size_bytes, 1))  # a hole would be a SIGBUS in the middle of a snapshot
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(handle)
    return path


def claim(path: Path) -> int | None:
    """Keep readers out of a slot that no rank has; a handle to write by, for `unclaim`, or None if it is being read."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if _lock(handle, fcntl.LOCK_EX):
        return handle
    os.close(handle)
    return None


def unclaim(handle: int) -> None:
    """Let readers in again."""
    fcntl.flock(handle, fcntl.LOCK_UN)  # a mapping has a handle of its own, with the same lock
    os.close(handle)


def remove(path: Path) -> bool:
    """Unlink a slot that no process has; False if one has it."""
    handle = os.open(_lease_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _lock(handle, fcntl.LOCK_EX):
            return False
        for file in (_record_of(path), path, _lease_of(path)):
            file.unlink(missing_ok=True)
    finally:
        os.close(handle)
    return True


def is_leased(path: Path) -> bool:
    """Whether a living process may write into the slot."""
    try:
        handle = os.open(_lease_of(path), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def list_slots(folder: VaultFolder) -> list[Path]:
    """All slots of a vault, by name."""
    try:
        paths = sorted(folder.slots.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in paths if path.name.isdecimal()]


def read_record(path: Path) -> ImageRecord | None:
    """The record of a slot, or None if there is no whole image in it.

    Raises:
        CheckpointError: The record is damaged.
    """
    try:
        data, size_bytes = _record_of(path).read_bytes(), path.stat().st_size
    except FileNotFoundError:
        return None  # or it has just been removed
    record = unseal(data, ImageRecord, str(_record_of(path)))
    if record.size_bytes > size_bytes:
        raise CheckpointError("the record tells of more bytes than the slot has", where=str(path))
    return record


def write_record(path: Path, record: ImageRecord) -> None:
    """Say that a slot holds a whole image.

    Raises:
        StorageError: It cannot be said.
    """
    with told_clearly(str(path)):
        partial = path.with_name(f"{path.name}~{os.getpid()}")
        partial.write_bytes(seal(record))
        partial.replace(_record_of(path))


def drop_record(path: Path) -> None:
    """What is in a slot is no image any more."""
    _record_of(path).unlink(missing_ok=True)


class OpenSlot:
    """A slot open for reading, which nobody overwrites until it is closed.

    Args:
        path: The file.

    Raises:
        BlockingIOError: It is being overwritten.
        OSError: It is gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            size = os.fstat(self._handle).st_size
            # Private, and so writable for libraries that insist on it, without a way for anything to get back.
            mapped = mmap.mmap(self._handle, size, access=mmap.ACCESS_COPY)
            self.bytes: Bytes = np.frombuffer(mapped, dtype=np.uint8)
        except OSError:
            os.close(self._handle)
            raise

    def close(self) -> None:
        """Let go of it; idempotent."""
        if self._handle >= 0:
            fcntl.flock(self._handle, fcntl.LOCK_UN)  # the mapping has a handle of its own, with the same lock
            os.close(self._handle)
            self._handle = -1


def open_slots(folder: VaultFolder) -> Iterator[OpenSlot]:
    """All slots with an image that nobody is overwriting, one by one; close each."""
    for path in list_slots(folder):
        if _record_of(path).exists():
            with contextlib.suppress(OSError):  # overwritten, or gone, since we looked: there is no image there then
                yield OpenSlot(path)


def _lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + IMAGE)


def _lease_of(path: Path) -> Path:
    return path.with_name(path.name + LEASE)


def check_fits(slot: Slot, size_bytes: int) -> None:
    """Raise `InternalError` if a state does not fit into a slot."""
    if slot.bytes.size < size_bytes:
        raise InternalError(f"a snapshot of {size_bytes} bytes does not fit into a slot of {slot.bytes.size}")
