"""The object store as Stormsail needs it: a few small operations with exact promises.

Keys are `/`-separated segments of `[A-Za-z0-9._-]`; anything else is refused, because stores disagree
about it. Every implementation passes the same contract tests. All methods may be called from any
thread and any process; each is bounded in time and raises a `StorageError` of the fitting kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What the store says about one object.

    Attributes:
        key: Key below the store's root.
        size_bytes: Length of the body.
        etag: Opaque version; changes whenever the body is replaced.
        modified_s: Seconds since the epoch by the store's clock.
    """

    key: str
    size_bytes: int
    etag: str
    modified_s: float


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Everything a process needs to open the store, safe to send between processes: secrets stay in files.

    Attributes:
        url: `s3://bucket/prefix` or `file:///absolute/path`.
        endpoint: S3 endpoint or None for AWS.
        region: S3 region or None.
        profile: AWS profile or None.
        credentials_file: File of mode 0600 with `access_key` and `secret_key` (JSON), or None for AWS's own chain.
        checksums: `when_supported` or `when_required`.
        timeout_s: Limit of one request without a body; see `s3_sockets` for what a body adds.
    """

    url: str
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    credentials_file: str | None = None
    checksums: str = "when_supported"
    timeout_s: float = 30.0

    def child(self, prefix: str) -> StoreAddress:
        """The same store with its root moved down to `prefix`."""
        from dataclasses import replace

        return replace(self, url=f"{self.url.rstrip('/')}/{prefix}")


class MultipartUpload(Protocol):
    """An object that arrives in parts and exists only once completed."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; parts are cut and sent as the store likes them."""

    def complete(self, *, if_none_match: bool = False) -> ObjectInfo:
        """Publish the object whole. Raises `PreconditionFailedError` if it exists and `if_none_match` is set."""

    def abort(self) -> None:
        """Give up and free what was sent; safe to call twice and after a failure."""


@runtime_checkable
class ObjectStore(Protocol):
    """A flat space of immutable or conditionally replaced objects."""

    @property
    def url(self) -> str:
        """Where this is, for people."""

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Store an object whole or not at all.

        An answer that was lost is settled by reading back: the call returns normally if what is there is
        byte for byte what was sent under `if_none_match` or `if_match`, and raises `PreconditionFailedError`
        if somebody else's bytes are there.
        """

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Bytes `start` (inclusive) to `end` (exclusive; None: to the end). Raises `ObjectMissingError`.

        A body shorter than the range that the object has is an error, never a short answer.
        """

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """The whole body and its etag, from one request."""

    def head(self, key: str) -> ObjectInfo:
        """What the store says about the object. Raises `ObjectMissingError`."""

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in key order, over all pages. Errors are raised, never "none"."""

    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none."""

    def multipart(self, key: str) -> MultipartUpload:
        """Start an upload in parts."""

    def abort_stale_uploads(self, prefix: str, *, older_than_s: float) -> int:
        """Abort unfinished multipart uploads below `prefix` that are older than this; returns how many."""
