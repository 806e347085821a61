"""What a file system needs to keep an object store's promises: durable writes, one winner, clear errors.

Helper files begin with `~`, which no key may contain, so that they can never be taken for objects.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stormsail.platform.errors import (
    InternalError,
    ObjectMissingError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from stormsail.platform.storage.keys import clip

if TYPE_CHECKING:
    from _hashlib import HASH

TEMPORARY = "~part-"
LOCK = "~lock"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_SHAPE = {errno.ENOTDIR, errno.EISDIR}
_AWAY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN, errno.ENOTCONN}
_NO_LINKS = {errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK, errno.EXDEV}
_LOCK_POLL_S = 0.005
_HASH_BYTES = 1 << 20
_ETAG_ATTRIBUTE = "user.stormsail.etag"


def storage_error(error: OSError, where: str) -> StorageError:
    """The storage error that tells what this operating system error means for the user."""
    text = error.strerror or str(error)
    code = error.errno
    if code in _FULL:
        return StorageFullError(f"No space left to write to ({text})", where=where, todo="Free some space, or prune.")
    if code in _DENIED:
        todo = "Make the folder writable for this user, or set storage.url to another place."
        return StorageDeniedError(f"Not allowed by the file system ({text})", where=where, todo=todo)
    if code in _SHAPE:
        todo = "Set storage.url to a folder; a key cannot lie below another object."
        what = f"A file stands where a folder is needed, or the reverse ({text})"
        return StorageDeniedError(what, where=where, todo=todo)
    if code == errno.ENOENT:
        return ObjectMissingError("There is no such object", where=where)
    if code in _AWAY:
        todo = "Check the disk or the network file system."
        return StorageUnavailableError(f"The file system does not answer ({text})", where=where, todo=todo)
    return StorageError(f"The file system refused: {text}", where=where)


@contextmanager
def told_clearly(where: str) -> Iterator[None]:
    """Turn every operating system error of the block into the storage error that it means."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, where) from error


def make_folder(folder: Path) -> None:
    """Create a folder and what is missing above it, durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        try:
            path.mkdir()
        except FileExistsError:
            pass  # another writer was faster
        except FileNotFoundError as error:  # /proc and its like
            todo = "Set storage.url to another place."
            raise StorageDeniedError("No folder can be made here", where=str(path), todo=todo) from error
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class TemporaryFile:
    """A file beside its target, which becomes the target in one step or never existed.

    Args:
        target: Where the bytes shall be; its folder is created.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        make_folder(target.parent)
        self.path = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}-{target.name}")
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._sha256 = hashlib.sha256()
        self._open = True

    def write(self, data: bytes | memoryview) -> None:
        """Append all the bytes."""
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        while view:
            view = view[os.write(self._handle, view) :]

    def finish(self) -> str:
        """Bring the bytes to the disk and close; returns the SHA-256 of the body."""
        etag = self._sha256.hexdigest()
        os.fsync(self._handle)
        _remember_etag(self._handle, etag)
        self._close()
        return etag

    def publish_over(self) -> None:
        """Become the target, replacing what is there. Call under `locked`."""
        self.path.replace(self.target)
        sync_folder(self.target.parent)

    def publish_new(self) -> bool:
        """Become the target, which must not exist; False if it does. Exactly one of all writers gets True."""
        try:
            os.link(self.path, self.target)
        except FileExistsError:
            # On NFS a repeated request can report its own success as "exists": the link count knows better.
            if self.path.stat().st_nlink != 2:  # noqa: PLR2004 (two names: the temporary one and the target)
                return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            todo = "Keep the run on a local disk, on NFS, or in S3."
            text = "This file system has no hard links, without which one of two writers cannot be refused"
            raise StorageDeniedError(text, where=str(self.target.parent), todo=todo) from error
        self.path.unlink()
        sync_folder(self.target.parent)
        return True

    def discard(self) -> None:
        """Remove what is left of it; may be called at any time and again."""
        self._close()
        self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._handle)


@contextmanager
def locked(folder: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the folder's lock against every other thread and process.

    Raises:
        StorageUnavailableError: It was not free within `timeout_s`.
    """
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock(handle, folder, timeout_s)
        yield
    finally:
        os.close(handle)


def file_etag(path: Path) -> str:
    """The SHA-256 of a file's body, from the note that its writer left if that still fits the file."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _recall_etag(handle) or _hash(handle)
    finally:
        os.close(handle)


def read_range(path: Path, start: int, end: int | None) -> bytes:
    """Bytes [start, end) of a file, clipped to what it has; all of them, and of one version of it."""
    with path.open("rb", buffering=0) as file:
        position, stop = clip(start, end, os.fstat(file.fileno()).st_size)
        file.seek(position)
        parts = []
        while position < stop:
            part = file.read(stop - position)
            if not part:
                raise StorageError(f"The file ended at byte {position} of {stop}", where=str(path))
            parts.append(part)
            position += len(part)
    return b"".join(parts)


def _lock(handle: int, folder: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                todo = "Look for a process that hangs while it writes there."
                text = f"Another writer held the lock for {timeout_s:g} s"
                raise StorageUnavailableError(text, where=str(folder / LOCK), todo=todo) from None
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _hash(handle: int) -> str:
    sha256: HASH = hashlib.sha256()
    position = 0
    while part := os.pread(handle, _HASH_BYTES, position):
        sha256.update(part)
        position += len(part)
    return sha256.hexdigest()


def _signature(handle: int) -> str:
    status = os.fstat(handle)
    return f"{status.st_size}:{status.st_mtime_ns}"


def _remember_etag(handle: int, etag: str) -> None:
    # A list would else read every byte of every object. Where the file system has no such notes, it does.
    if hasattr(os, "setxattr"):
        with suppress(OSError):
            os.setxattr(handle, _ETAG_ATTRIBUTE, f"{etag}:{_signature(handle)}".encode())


def _recall_etag(handle: int) -> str | None:
    if not hasattr(os, "getxattr"):
        return None
    try:
        etag, _, signature = os.getxattr(handle, _ETAG_ATTRIBUTE).decode().partition(":")
    except OSError:
        return None
    return etag if signature == _signature(handle) else None


def check_absolute(path: Path) -> Path:
    """Return the path. Raises `InternalError` if it depends on the current folder."""
    if not path.is_absolute():
        raise InternalError("A store's folder must be absolute", where=str(path))
    return path
