"""What a failed S3 request means: whether to try again, and what to tell the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from stormsail.platform.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from stormsail.platform.storage.retry import Fault, FaultClass

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_MISSING = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
_LOST = {"PreconditionFailed", "412"}
_FULL = {"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "507"}
_CLOCK = {"RequestTimeTooSkewed"}
_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException", "301"}
_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"}
_CHECKSUMS = {"NotImplemented", "501"}
# The answer to a HEAD has no body that could say why; then the status stands for the code.
_NO_REASON = "400"
_NO_REASON_DENIED = "403"
_BUSY = {
    "ConditionalRequestConflict", "OperationAborted", "SlowDown", "Throttling", "ThrottlingException",
    "TooManyRequests", "RequestTimeout", "RequestTimeoutException", "InternalError", "ServiceUnavailable",
    # The body was damaged, or cut off, on its way.
    "BadDigest", "InvalidDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch",
}  # fmt: skip
_RIGHTS = (
    "The credentials need s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on the objects, and "
    "s3:ListBucket on the bucket (without it, S3 answers 403 for objects that do not exist)."
)
_SERVER_ERROR = 500
_SHORT = 120
_TOO_MANY = 429
_CONFLICT = 409
_FORBIDDEN = 403

_AWAY = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_BROKEN_OFF = (
    boto.HTTPClientError,
    boto.ConnectionError,
    boto.FlexibleChecksumError,
    boto.IncompleteReadError,
    boto.ResponseStreamingError,
)
# What botocore, and whoever picks an answer apart, raise where it lacks something or is no answer of S3 at all: a proxy's
# page, a field left out, a date that is none.
NOT_UNDERSTOOD = (ResponseParserError, KeyError, ValueError, TypeError, AttributeError, RecursionError)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
    boto.SSOError,
)


@dataclass(frozen=True, slots=True)
class Place:
    """What error messages name.

    Attributes:
        bucket: The bucket.
        endpoint: The endpoint, or "AWS".
        url: The store's URL.
        key: Key below the store's root, or "" for none.
    """

    bucket: str
    endpoint: str
    url: str
    key: str = ""

    @property
    def where(self) -> str:
        """The object, or else the store."""
        return f"{self.url}/{self.key}" if self.key else self.url


def error_code(error: boto.ClientError) -> str:
    """The code of an answered error; a status in digits where the answer had no body."""
    return str(error.response.get("Error", {}).get("Code", ""))


def request_retries(error: boto.ClientError) -> int:
    """How often botocore had repeated the request before it got this answer."""
    return int(_metadata(error).get("RetryAttempts", 0))


def classify(error: Exception, place: Place) -> Fault:
    """Say what an error means; it is a `ClientError`, a `BotoCoreError` or one of `NOT_UNDERSTOOD`."""
    # Where the stack ends in the middle of a connection, botocore takes that for a fault of the connection.
    if isinstance(error, boto.HTTPClientError) and isinstance(error.kwargs.get("error"), RecursionError):
        error = error.kwargs["error"]
    if not isinstance(error, boto.BotoCoreError):
        answered = isinstance(error, boto.ClientError)
        return _classify_answer(error, place) if answered else _classify_strange(error, place)
    if isinstance(error, boto.SSLError) and "CERTIFICATE" in str(error).upper():
        todo = "Check the endpoint's certificate, or set AWS_CA_BUNDLE to your authority's file."
        return Fault(
            FaultClass.FINAL, StorageDeniedError(f"No trusted connection: {error}", where=place.where, todo=todo)
        )
    if isinstance(error, _AWAY):
        todo = "Is the server up, and storage.endpoint right?"
        what = f"Nobody answers at {place.endpoint} ({type(error).__name__})"
        return Fault(FaultClass.AWAY, StorageUnavailableError(what, where=place.where, todo=todo))
    if isinstance(error, _NO_CREDENTIALS):
        todo = "Set credentials as for the AWS command line, or storage.profile."
        what = f"No usable credentials for bucket {place.bucket!r}: {error}"
        return Fault(FaultClass.FINAL, StorageDeniedError(what, where=place.where, todo=todo))
    if isinstance(error, _BROKEN_OFF):
        what = f"The connection to {place.endpoint} broke off or timed out ({type(error).__name__})"
        todo = "If the link is slow, raise storage.timeout_s."
        return Fault(FaultClass.BUSY, StorageUnavailableError(what, where=place.where, todo=todo))
    return Fault(FaultClass.FINAL, StorageError(f"The S3 client refused: {error}", where=place.where))


def _classify_strange(error: Exception, place: Place) -> Fault:
    if isinstance(error, RecursionError):
        what = f"The store at {place.endpoint} redirects in a circle"
        todo = "Set storage.region to the bucket's region, and check storage.endpoint."
        return Fault(FaultClass.FINAL, StorageDeniedError(what, where=place.where, todo=todo))
    what = f"The answer of {place.endpoint} cannot be understood ({type(error).__name__}: {_in_short(error)})"
    todo = "Is this an S3 server, and is there a proxy in between?"
    return Fault(FaultClass.BUSY, StorageUnavailableError(what, where=place.where, todo=todo))


def _in_short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def _classify_answer(error: boto.ClientError, place: Place) -> Fault:
    code = error_code(error)
    status = int(_metadata(error).get("HTTPStatusCode", 0))
    if code in _EXPIRED or code == _NO_REASON:
        unsaid = "The store answered 400 and no reason, as it does to a HEAD where credentials have expired"
        what = unsaid if code == _NO_REASON else "The credentials have expired"
        todo = "Renew the temporary credentials; the run goes on with the new ones by itself."
        return Fault(FaultClass.EXPIRED, StorageUnavailableError(what, where=place.where, todo=todo))
    if code in _FULL:
        return Fault(FaultClass.FINAL, StorageFullError(f"The store has no space left ({code})", where=place.where))
    if code in _LOST:
        return Fault(
            FaultClass.FINAL,
            PreconditionFailedError("The object exists, or is not the one expected", where=place.where),
        )
    if code in _BUSY or status in (_CONFLICT, _TOO_MANY) or (status >= _SERVER_ERROR and code not in _CHECKSUMS):
        what = f"The store answered {status} {code}".rstrip()
        return Fault(FaultClass.BUSY, StorageUnavailableError(what, where=place.where))
    if code in _MISSING:
        return Fault(FaultClass.FINAL, ObjectMissingError("There is no such object", where=place.where))
    kind = FaultClass.UNKNOWN_KEYS if code in _KEYS or code == _NO_REASON_DENIED else FaultClass.FINAL
    return Fault(kind, _refusal(code, status, _message(error), place))


def _refusal(code: str, status: int, message: str, place: Place) -> StorageError:
    told = f"({status} {code}: {message})"
    if code == "NoSuchBucket":
        what = f"There is no bucket {place.bucket!r} at {place.endpoint}"
        todo = "Create the bucket, or correct storage.url."
    elif code in _CLOCK:
        what = f"This machine's clock is wrong {told}"
        todo = "Set the clock."
    elif code in _REGION:
        what = f"Bucket {place.bucket!r} is in another region {told}"
        todo = "Set storage.region to the bucket's region."
    elif code in _KEYS:
        what = f"The store does not accept the credentials for bucket {place.bucket!r} {told}"
        todo = "Correct the credentials; storage.profile chooses among several."
    elif code in _CHECKSUMS:
        what = f"The store does not support the request {told}"
        todo = "Try storage.checksums: when_required; some S3-like stores do not know the newer checksum headers."
    elif status == _FORBIDDEN:
        what = f"Access to bucket {place.bucket!r} is denied {told}"
        todo = _RIGHTS
    else:
        return StorageError(f"The store refused {told}", where=place.where)
    return StorageDeniedError(what, where=place.where, todo=todo)


def _metadata(error: boto.ClientError) -> Mapping[str, Any]:
    found: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    return found


def _message(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", ""))
