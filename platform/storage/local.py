"""A folder as an object store: `file:///path`, on a local disk or a shared POSIX file system.

Objects are plain files under their keys. A body is written to a temporary file, flushed, and becomes
the object in one step; conditions hold between threads, processes and (with working `flock` and hard
links, as on NFS) machines. Nothing outside the folder is touched: no key can leave it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from stormsail.platform.errors import InternalError, ObjectMissingError, PreconditionFailedError
from stormsail.platform.storage.keys import (
    check_conditions,
    check_key,
    check_prefix,
    check_range,
    is_segment,
)
from stormsail.platform.storage.local_files import (
    TEMPORARY,
    TemporaryFile,
    check_absolute,
    file_etag,
    locked,
    read_range,
    sync_folder,
    told_clearly,
)
from stormsail.platform.storage.store import MultipartUpload, ObjectInfo


class LocalStore:
    """An `ObjectStore` in a folder.

    Args:
        root: Absolute path; created by the first write.
        timeout_s: Limit of waiting for another writer's lock.
    """

    def __init__(self, root: Path, *, timeout_s: float = 30.0) -> None:
        self._root = check_absolute(root)
        self._timeout_s = timeout_s

    @property
    def url(self) -> str:
        """Where this is, for people."""
        return self._root.as_uri()

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Store an object whole; see `ObjectStore.put`. The etag is the SHA-256 of the body."""
        check_conditions(if_none_match=if_none_match, if_match=if_match)
        path = self._path(key)
        with told_clearly(str(path)):
            file = TemporaryFile(path)
            try:
                file.write(data)
                info = self._info(key, file.path, file.finish())  # under its key, it may be gone at once
                self._publish(file, key, if_none_match=if_none_match, if_match=if_match)
            finally:
                file.discard()
            return info

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of the object; see `ObjectStore.get`."""
        check_range(start, end)
        path = self._path(key)
        with told_clearly(str(path)):
            _check_file(path)
            return read_range(path, start, end)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """The whole body and its etag."""
        path = self._path(key)
        with told_clearly(str(path)):
            _check_file(path)
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                body = file.read()
        etag = hashlib.sha256(body).hexdigest()
        return body, ObjectInfo(key=key, size_bytes=len(body), etag=etag, modified_s=status.st_mtime)

    def head(self, key: str) -> ObjectInfo:
        """What is known about the object."""
        path = self._path(key)
        with told_clearly(str(path)):
            _check_file(path)
            return self._info(key, path, file_etag(path))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in key order."""
        check_prefix(prefix)
        after = "" if start_after is None else start_after
        for key in self._keys(prefix):
            if key > after and (info := self._info_if_there(key)) is not None:
                yield info

    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none."""
        path = self._path(key)
        with told_clearly(str(path)):
            if not path.is_file():
                return
            with locked(path.parent, timeout_s=self._timeout_s):
                path.unlink(missing_ok=True)
                # Deletions reach the disk in order: a commit that comes back must not lack what went after it.
                sync_folder(path.parent)

    def multipart(self, key: str) -> MultipartUpload:
        """Start an upload in parts."""
        path = self._path(key)
        with told_clearly(str(path)):
            return _Upload(self, key, TemporaryFile(path))

    def abort_stale_uploads(self, prefix: str, *, older_than_s: float) -> int:
        """Remove what uploads and writers that died left below `prefix`; returns how many files."""
        check_prefix(prefix)
        limit = time.time() - older_than_s
        with told_clearly(self.url):
            return sum(_removed_if_older(path, limit) for path in self._leftovers(prefix))

    def finish_upload(self, file: TemporaryFile, key: str, *, if_none_match: bool) -> ObjectInfo:
        """Publish an upload's file under its key."""
        with told_clearly(str(file.target)):
            info = self._info(key, file.path, file.finish())
            self._publish(file, key, if_none_match=if_none_match, if_match=None)
            return info

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _publish(self, file: TemporaryFile, key: str, *, if_none_match: bool, if_match: str | None) -> None:
        if if_none_match:
            if not file.publish_new():
                raise PreconditionFailedError("The object exists already", where=f"{self.url}/{key}")
            return
        # Replacing and deleting take the lock, condition or not: else they could fall between the check of
        # another writer's condition and its rename.
        with locked(file.target.parent, timeout_s=self._timeout_s):
            if if_match is not None and self._true_etag(key) != if_match:
                raise PreconditionFailedError("The object is not the one expected", where=f"{self.url}/{key}")
            file.publish_over()

    def _true_etag(self, key: str) -> str | None:
        try:
            return self.get_with_info(key)[1].etag
        except ObjectMissingError:
            return None

    def _info(self, key: str, path: Path, etag: str) -> ObjectInfo:
        status = path.stat()
        return ObjectInfo(key=key, size_bytes=status.st_size, etag=etag, modified_s=status.st_mtime)

    def _info_if_there(self, key: str) -> ObjectInfo | None:
        try:
            return self.head(key)
        except ObjectMissingError:
            return None  # deleted since the folder was read

    def _keys(self, prefix: str) -> Iterator[str]:
        folder, _, _ = prefix.rpartition("/")
        with told_clearly(self.url):
            found = list(_walk(self._root / folder, f"{folder}/" if folder else ""))
        return (key for key in sorted(found) if key.startswith(prefix))

    def _leftovers(self, prefix: str) -> Iterator[Path]:
        for path in self._root.rglob(f"{TEMPORARY}*"):
            name = path.name[len(TEMPORARY) :].partition("-")[2]
            if (path.parent.relative_to(self._root) / name).as_posix().startswith(prefix):
                yield path


class _Upload:
    def __init__(self, store: LocalStore, key: str, file: TemporaryFile) -> None:
        self._store = store
        self._key = key
        self._file = file
        self._open = True

    def write(self, data: bytes | memoryview) -> None:
        self._check_open()
        with told_clearly(str(self._file.target)):
            self._file.write(data)

    def complete(self, *, if_none_match: bool = False) -> ObjectInfo:
        self._check_open()
        self._open = False
        try:
            return self._store.finish_upload(self._file, self._key, if_none_match=if_none_match)
        finally:
            self.abort()

    def abort(self) -> None:
        self._open = False
        with told_clearly(str(self._file.target)):
            self._file.discard()

    def _check_open(self) -> None:
        if not self._open:
            raise InternalError("The upload is closed", where=f"{self._store.url}/{self._key}")


def _removed_if_older(path: Path, limit_s: float) -> bool:
    try:
        if path.stat().st_mtime >= limit_s:
            return False
    except FileNotFoundError:
        return False  # its writer has just finished
    path.unlink(missing_ok=True)
    return True


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ObjectMissingError("There is no such object, only others below it", where=str(path))


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        if prefix:
            return  # an object, below which there is nothing
        raise
    for entry in entries:
        if not is_segment(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"
