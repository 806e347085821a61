"""How a request to S3 is made: with a fresh client, repeated while it may help, told clearly when not."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from botocore import exceptions as boto

from stormsail.platform.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.storage.retry import Fault, FaultClass, Patience, Retries
from stormsail.platform.storage.s3_client import ClientSource
from stormsail.platform.storage.s3_errors import NOT_UNDERSTOOD, Place, classify, request_retries
from stormsail.platform.storage.store import StoreAddress

_T = TypeVar("_T")


class S3Requests:
    """Makes requests to one bucket; safe from any thread.

    Args:
        address: `s3://bucket/prefix` and how to connect.
        patience: How long operations are tried again.

    Attributes:
        place: What messages name.
        prefix: Stands before every key in the bucket; "" or ends in "/".
        answered: Whether the bucket has answered a request: it exists.
    """

    def __init__(self, address: StoreAddress, patience: Patience) -> None:
        parts = urlsplit(address.url)
        self.prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        self.place = Place(parts.netloc, address.endpoint or "AWS", address.url.rstrip("/"))
        self.answered = False
        self._clients = ClientSource.of(address)
        self._needs_md5 = address.checksums == "when_required"
        self._patience = patience

    def at(self, key: str) -> dict[str, str]:
        """The parameters that name the object in a request."""
        return {"Bucket": self.place.bucket, "Key": self.prefix + key}

    def guard(self, body: bytes | bytearray) -> dict[str, str]:
        """The parameters by which the server finds that a body was damaged on its way; none where botocore sends them.

        With `when_required` it sends none, and no S3-like server need compare the hash in the signature with the body.
        """
        if not self._needs_md5:
            return {}
        return {"ContentMD5": base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()}

    def call(self, operation: str, key: str, request: Callable[[Any], _T]) -> _T:
        """Do a request that may be repeated at will, until it succeeds, is refused or patience ends."""
        return self.conditional(operation, key, request, None)

    def conditional(
        self, operation: str, key: str, request: Callable[[Any], _T], settle: Callable[[], _T | None] | None
    ) -> _T:
        """Do a request that must take effect at most once.

        Args:
            operation: Its name, for messages.
            key: The object.
            request: Does it once with the given client, and picks the answer apart.
            settle: Called when the request was refused after an earlier try whose fate is unknown; returns the
                result if that earlier try had succeeded, else None.
        """
        place = Place(self.place.bucket, self.place.endpoint, self.place.url, key)
        retries = Retries(self._patience, operation, place.where)
        renewed = False
        while True:
            try:
                result = request(self._clients.get())
            except (boto.ClientError, boto.BotoCoreError, *NOT_UNDERSTOOD) as error:
                fault = classify(error, place)
                uncertain = retries.failures > 0 or (isinstance(error, boto.ClientError) and request_retries(error) > 0)
                if (
                    uncertain
                    and settle is not None
                    and isinstance(fault.error, PreconditionFailedError | ObjectMissingError)
                ):
                    return _settled(settle, fault.error)
                renewed = self._failed(retries, fault, error, renewed=renewed)
            except StorageUnavailableError as error:
                renewed = self._failed(retries, Fault(FaultClass.BUSY, error), error, renewed=renewed)
            else:
                self.answered = True
                return result

    def _failed(self, retries: Retries, fault: Fault, cause: Exception, *, renewed: bool) -> bool:
        stale = fault.kind in (FaultClass.EXPIRED, FaultClass.UNKNOWN_KEYS)
        if stale and not renewed:
            retries.failures += 1
            self._clients.renew()
            return True
        try:
            retries.failed(fault)
        except StorageError as error:
            raise error from cause
        if fault.kind is FaultClass.EXPIRED:
            self._clients.renew()
        return renewed


def answer_time_s(answer: dict[str, Any]) -> float:
    """Seconds since the epoch by the clock of the store, when it gave this answer."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(date).timestamp() if date else time.time()


def _settled(settle: Callable[[], _T | None], refusal: StorageError) -> _T:
    try:
        result = settle()
    except ObjectMissingError:
        result = None
    if result is None:
        raise refusal
    return result
