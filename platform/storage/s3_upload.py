"""A multipart upload to S3, which costs one plain put if the object turns out to be small."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

from stormsail.platform.errors import InternalError, ObjectMissingError, StorageError
from stormsail.platform.storage.s3_requests import S3Requests
from stormsail.platform.storage.store import ObjectInfo

PART_BYTES = 16 * 1024 * 1024  # some S3-like servers refuse larger parts with checksums
MAX_PARTS = 10_000


class _Objects(Protocol):
    """What an upload needs of its store besides raw requests."""

    def put(self, key: str, data: bytes | memoryview, *, if_none_match: bool = False) -> ObjectInfo: ...
    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes: ...
    def head(self, key: str) -> ObjectInfo: ...


class S3Upload:
    """A `MultipartUpload`; used by one thread.

    Args:
        requests: How to reach the bucket.
        objects: The store.
        key: The object to be.
    """

    def __init__(self, requests: S3Requests, objects: _Objects, key: str) -> None:
        self._requests = requests
        self._objects = objects
        self._key = key
        self._buffer = bytearray()
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._upload_id: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._open = True

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; full parts are sent at once."""
        self._check_open()
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        self._size_bytes += len(view)
        while view:
            room = PART_BYTES - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == PART_BYTES:
                self._send_part()

    def complete(self, *, if_none_match: bool = False) -> ObjectInfo:
        """Publish the object; see `MultipartUpload.complete`."""
        self._check_open()
        if self._upload_id is None:
            info = self._objects.put(self._key, bytes(self._buffer), if_none_match=if_none_match)
        else:
            if self._buffer:
                self._send_part()
            info = self._join(if_none_match=if_none_match)
        self._close()
        return info

    def abort(self) -> None:
        """Give up and free what was sent; safe to call twice and after a failure."""
        upload_id = self._upload_id
        self._close()
        if upload_id is not None:
            abort_upload(self._requests, self._key, upload_id)

    def _send_part(self) -> None:
        if len(self._parts) == MAX_PARTS:
            limit = PART_BYTES * MAX_PARTS
            raise StorageError(
                f"An object may have at most {limit} bytes", where=f"{self._requests.place.url}/{self._key}"
            )
        if self._upload_id is None:
            at = self._requests.at(self._key)
            self._upload_id = self._requests.call(
                "upload", self._key, lambda client: str(client.create_multipart_upload(**at)["UploadId"])
            )
        body, number = bytes(self._buffer), len(self._parts) + 1
        where = {**self._requests.at(self._key), "UploadId": self._upload_id, "PartNumber": number}
        guard = self._requests.guard(body)

        def send(client: Any) -> dict[str, Any]:
            answer = client.upload_part(**where, Body=body, **guard)
            sums = {
                name: text for name, text in answer.items() if name.startswith("Checksum") and name != "ChecksumType"
            }
            return {"PartNumber": number, "ETag": answer["ETag"], **sums}

        self._parts.append(self._requests.call(f"upload of part {number}", self._key, send))
        self._buffer.clear()

    def _join(self, *, if_none_match: bool) -> ObjectInfo:
        parameters = {
            **self._requests.at(self._key),
            "UploadId": self._upload_id,
            "MultipartUpload": {"Parts": self._parts},
            **({"IfNoneMatch": "*"} if if_none_match else {}),
        }

        def send(client: Any) -> None:
            client.complete_multipart_upload(**parameters)

        # Repeated after a success whose answer was lost, this is refused because the upload is gone or the
        # object exists: `_found` then looks whether the object is ours.
        self._requests.conditional("complete", self._key, send, self._found)
        return self._objects.head(self._key)

    def _found(self) -> bool | None:
        if self._objects.head(self._key).size_bytes != self._size_bytes:
            return None
        sha256 = hashlib.sha256()
        for start in range(0, self._size_bytes, PART_BYTES):
            sha256.update(self._objects.get(self._key, start=start, end=start + PART_BYTES))
        return True if sha256.digest() == self._sha256.digest() else None

    def _close(self) -> None:
        self._open = False
        self._buffer = bytearray()
        self._upload_id = None

    def _check_open(self) -> None:
        if not self._open:
            raise InternalError("The upload is closed", where=f"{self._requests.place.url}/{self._key}")


def abort_upload(requests: S3Requests, key: str, upload_id: str) -> None:
    """Abort one upload; no error if it is gone."""
    where = {**requests.at(key), "UploadId": upload_id}
    try:
        requests.call("abort", key, lambda client: client.abort_multipart_upload(**where))
    except ObjectMissingError:
        return
