"""An S3 bucket, or a folder of one, as an object store: AWS and every S3-like server, through boto3.

Requests are repeated by botocore a little and by `retry.Retries` for as long as `Patience` says. A
conditional put whose answer was lost is settled by reading back what is there. Import this module only
where S3 is really used: it brings botocore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from botocore import exceptions as boto

from stormsail.platform.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.storage.keys import check_conditions, check_key, check_prefix, check_range, clip, is_key
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3_requests import S3Requests, answer_time_s
from stormsail.platform.storage.s3_upload import S3Upload, abort_upload
from stormsail.platform.storage.store import MultipartUpload, ObjectInfo, StoreAddress

_T = TypeVar("_T")

_UNSATISFIABLE = 416
# What the checkpoint reader asks for at most: in one piece it need not be put together once more.
_READ_BYTES = 16 << 20


class S3Store:
    """An `ObjectStore` in a bucket; can be pickled, and opens its own connections wherever it arrives.

    Args:
        address: `s3://bucket/prefix` and how to connect.
        patience: How long operations are tried again.
    """

    def __init__(self, address: StoreAddress, *, patience: Patience | None = None) -> None:
        self._address = address
        self._patience = patience or Patience()
        self._requests = S3Requests(address, self._patience)
        self._prefix = self._requests.prefix

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self._address, self._patience))

    @property
    def url(self) -> str:
        """Where this is, for people."""
        return self._requests.place.url

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Store an object whole; see `ObjectStore.put`."""
        check_key(key)
        check_conditions(if_none_match=if_none_match, if_match=if_match)
        body = _as_sent(data)
        condition = {"IfNoneMatch": "*"} if if_none_match else {} if if_match is None else {"IfMatch": if_match}
        guard = self._requests.guard(body)

        def send(client: Any) -> ObjectInfo:
            answer = client.put_object(**self._requests.at(key), Body=body, **guard, **condition)
            return ObjectInfo(key, len(body), _etag(answer), answer_time_s(answer))

        def settle() -> ObjectInfo | None:
            held, info = self.get_with_info(key)
            return info if held == body else None

        try:
            return self._requests.conditional("put", key, send, settle if condition else None)
        except ObjectMissingError as error:  # how AWS refuses If-Match where there is no object
            raise PreconditionFailedError("There is no object to replace", where=error.where) from error
        except PreconditionFailedError:
            if not if_none_match or self._is_there(key):
                raise
        return self._create_or_deny(key, send, settle)

    def _create_or_deny(
        self, key: str, send: Callable[[Any], ObjectInfo], settle: Callable[[], ObjectInfo | None]
    ) -> ObjectInfo:
        """Once more, as the object that stood in the way may just have been deleted; else the store cannot be used."""
        try:
            return self._requests.conditional("put", key, send, settle)
        except PreconditionFailedError as error:
            if self._is_there(key):
                raise
            what = "The store refuses to create an object where there is none"
            todo = "It does not honour If-None-Match, without which two runs could overwrite each other: use another."
            raise StorageDeniedError(what, where=error.where, todo=todo) from error

    def _is_there(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectMissingError:
            return False
        return True

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of the object; see `ObjectStore.get`."""
        check_range(start, end)
        if start == 0 and end is None:
            return self.get_with_info(key)[0]
        if start == end:
            self.head(key)
            return b""
        span = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        try:
            return self._requests.call(
                "get", check_key(key), lambda client: self._read_range(client, key, span, start, end)
            )
        except _EmptyRangeError:
            return b""

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """The whole body and its etag, from one request."""

        def read(client: Any) -> tuple[bytes, ObjectInfo]:
            answer = client.get_object(**self._requests.at(key))
            info = _info(key, answer)
            return self._body(answer, key, info.size_bytes), info

        return self._requests.call("get", check_key(key), read)

    def head(self, key: str) -> ObjectInfo:
        """What the store says about the object."""
        try:
            return self._requests.call(
                "head", check_key(key), lambda client: _info(key, client.head_object(**self._requests.at(key)))
            )
        except ObjectMissingError:
            # The answer to a HEAD has no body, so that a missing bucket looks like a missing object.
            self._check_bucket()
            raise

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in key order.

        Every page is fetched before the first object is handed out. Objects in the bucket whose names
        are no keys of ours are left out.
        """
        check_prefix(prefix)
        wanted: dict[str, Any] = {"Prefix": self._prefix + prefix}
        # SeaweedFS walks folder by folder: out of key order, and with StartAfter it leaves out whole
        # folders. So only AWS is asked to skip; everywhere the result is filtered and sorted here.
        if start_after and self._address.endpoint is None:
            wanted["StartAfter"] = self._prefix + start_after

        def read(page: dict[str, Any]) -> Sequence[ObjectInfo]:
            return [
                ObjectInfo(
                    found["Key"][len(self._prefix) :], found["Size"], _etag(found), found["LastModified"].timestamp()
                )
                for found in page.get("Contents", [])
                if found["Key"].startswith(wanted["Prefix"])
            ]

        infos = self._pages("list_objects_v2", "ContinuationToken", "NextContinuationToken", wanted, read)
        after = start_after or ""
        kept = (info for info in infos if info.key > after and is_key(info.key))
        return iter(sorted(kept, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none."""
        self._requests.call("delete", check_key(key), lambda client: client.delete_object(**self._requests.at(key)))

    def multipart(self, key: str) -> MultipartUpload:
        """Start an upload in parts; nothing is sent before the first part is full."""
        return S3Upload(self._requests, self, check_key(key))

    def abort_stale_uploads(self, prefix: str, *, older_than_s: float) -> int:
        """Abort unfinished uploads below `prefix` that are older than this; returns how many."""
        check_prefix(prefix)

        def read(page: dict[str, Any]) -> Sequence[tuple[str, str]]:
            limit = answer_time_s(page) - older_than_s  # the store's clock, not ours, dated the uploads
            return [
                (found["Key"][len(self._prefix) :], found["UploadId"])
                for found in page.get("Uploads", [])
                if found["Key"].startswith(wanted["Prefix"]) and found["Initiated"].timestamp() < limit
            ]

        wanted = {"Prefix": self._prefix + prefix}
        found = self._pages("list_multipart_uploads", "KeyMarker", "NextKeyMarker", wanted, read)
        stale = tuple(found)  # before the first is gone, as that would move the pages
        for key, upload in stale:
            abort_upload(self._requests, key, upload)
        return len(stale)

    def _pages(
        self,
        method: str,
        token: str,
        next_token: str,
        wanted: dict[str, Any],
        read: Callable[[dict[str, Any]], Sequence[_T]],
    ) -> Iterator[_T]:
        """What all pages of a list hold, page by page."""

        def ask(client: Any) -> tuple[dict[str, Any], Sequence[_T]]:
            page: dict[str, Any] = getattr(client, method)(Bucket=self._requests.place.bucket, **wanted)
            return page, read(page)

        seen = set()
        while True:
            page, held = self._requests.call("list", "", ask)
            yield from held
            if not page.get("IsTruncated"):
                return
            place = page.get(next_token), page.get("NextUploadIdMarker")
            if place[0] is None or place in seen:
                raise StorageError(
                    "The store's list does not advance: it says there is more, but not where", where=self.url
                )
            seen.add(place)
            wanted[token] = place[0]
            if place[1] is not None:
                wanted["UploadIdMarker"] = place[1]

    def _read_range(self, client: Any, key: str, span: str, start: int, end: int | None) -> bytes:
        try:
            answer = client.get_object(**self._requests.at(key), Range=span)
        except boto.ClientError as error:
            if _metadata_status(error) == _UNSATISFIABLE:
                raise _EmptyRangeError from error
            raise
        unit, _, total = answer.get("ContentRange", "").rpartition("/")
        first, stop = clip(start, end, int(total) if total.isdigit() else 0)
        if unit != f"bytes {first}-{stop - 1}":
            what = f"The store answered another range than was asked for: {unit or 'none'} in place of {span}"
            raise StorageError(what, where=f"{self.url}/{key}")
        return self._body(answer, key, stop - first)

    def _body(self, answer: dict[str, Any], key: str, size_bytes: int) -> bytes:
        stream = answer["Body"]
        parts = []
        while part := stream.read(_READ_BYTES):
            parts.append(part)
        body = b"".join(parts)
        if len(body) != size_bytes:
            what = f"The body broke off at byte {len(body)} of {size_bytes}"
            raise StorageUnavailableError(what, where=f"{self.url}/{key}")
        return body

    def _check_bucket(self) -> None:
        if not self._requests.answered:
            wanted = {"Bucket": self._requests.place.bucket, "Prefix": self._prefix, "MaxKeys": 1}
            self._requests.call("list", "", lambda client: client.list_objects_v2(**wanted))


class _EmptyRangeError(Exception):
    """The object has no byte in the range asked for."""


def _info(key: str, answer: dict[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, answer["ContentLength"], _etag(answer), answer["LastModified"].timestamp())


def _etag(answer: dict[str, Any]) -> str:
    etag = answer["ETag"]
    if not isinstance(etag, str) or not etag:
        raise ValueError("the ETag is empty")
    return etag


def _as_sent(data: bytes | memoryview) -> bytes | bytearray:
    """What the client takes, which are no views: the whole of what a view shows is not copied once more."""
    whole = data.obj if isinstance(data, memoryview) else data
    return whole if isinstance(whole, bytes | bytearray) and len(whole) == len(data) else bytes(data)


def _metadata_status(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _rebuild(address: StoreAddress, patience: Patience) -> S3Store:
    return S3Store(address, patience=patience)
