"""A store in this process's memory: keeps the same promises as the real ones, and forgets everything.

For tests and dry runs. It cannot travel to another process, where it would be another store.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Never

from stormsail.platform.errors import InternalError, ObjectMissingError, PreconditionFailedError
from stormsail.platform.storage.keys import check_conditions, check_key, check_prefix, check_range, clip
from stormsail.platform.storage.store import MultipartUpload, ObjectInfo


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    info: ObjectInfo


class MemoryStore:
    """An `ObjectStore` that lives and dies with this object.

    Args:
        name: Shown in `url`.
        clock: Seconds since the epoch.
    """

    def __init__(self, name: str = "memory", *, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[_Upload, float] = {}

    def __reduce__(self) -> Never:
        raise InternalError("A store in memory cannot be sent to another process", where=self.url)

    @property
    def url(self) -> str:
        """Where this is, for people."""
        return f"memory://{self._name}"

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Store an object whole; see `ObjectStore.put`."""
        check_key(key)
        check_conditions(if_none_match=if_none_match, if_match=if_match)
        body = bytes(data)
        etag = hashlib.sha256(body).hexdigest()
        with self._lock:
            held = self._objects.get(key)
            if if_none_match and held is not None:
                raise PreconditionFailedError("The object exists already", where=f"{self.url}/{key}")
            if if_match is not None and (held is None or held.info.etag != if_match):
                raise PreconditionFailedError("The object is not the one expected", where=f"{self.url}/{key}")
            info = ObjectInfo(key=key, size_bytes=len(body), etag=etag, modified_s=self._clock())
            self._objects[key] = _Object(body, info)
        return info

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of the object; see `ObjectStore.get`."""
        check_range(start, end)
        body = self._find(key).body
        first, stop = clip(start, end, len(body))
        return body[first:stop]

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """The whole body and its etag."""
        found = self._find(key)
        return found.body, found.info

    def head(self, key: str) -> ObjectInfo:
        """What is known about the object."""
        return self._find(key).info

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in key order."""
        check_prefix(prefix)
        with self._lock:
            infos = sorted((held.info for held in self._objects.values()), key=lambda info: info.key)
        after = "" if start_after is None else start_after
        return (info for info in infos if info.key.startswith(prefix) and info.key > after)

    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none."""
        with self._lock:
            self._objects.pop(check_key(key), None)

    def multipart(self, key: str) -> MultipartUpload:
        """Start an upload in parts."""
        upload = _Upload(self, check_key(key))
        with self._lock:
            self._uploads[upload] = self._clock()
        return upload

    def abort_stale_uploads(self, prefix: str, *, older_than_s: float) -> int:
        """Abort unfinished uploads below `prefix` that are older than this; returns how many."""
        check_prefix(prefix)
        limit = self._clock() - older_than_s
        with self._lock:
            stale = [up for up, begun in self._uploads.items() if up.key.startswith(prefix) and begun < limit]
        for upload in stale:
            upload.abort()
        return len(stale)

    def forget_upload(self, upload: _Upload) -> None:
        """Called by an upload that ended."""
        with self._lock:
            self._uploads.pop(upload, None)

    def _find(self, key: str) -> _Object:
        with self._lock:
            found = self._objects.get(check_key(key))
        if found is None:
            raise ObjectMissingError("There is no such object", where=f"{self.url}/{key}")
        return found


class _Upload:
    def __init__(self, store: MemoryStore, key: str) -> None:
        self.key = key
        self._store = store
        self._buffer = bytearray()
        self._open = True

    def write(self, data: bytes | memoryview) -> None:
        self._check_open()
        self._buffer += data

    def complete(self, *, if_none_match: bool = False) -> ObjectInfo:
        self._check_open()
        info = self._store.put(self.key, bytes(self._buffer), if_none_match=if_none_match)
        self.abort()
        return info

    def abort(self) -> None:
        self._open = False
        self._buffer.clear()
        self._store.forget_upload(self)

    def _check_open(self) -> None:
        if not self._open:
            raise InternalError("The upload is closed", where=f"{self._store.url}/{self.key}")
