"""Every error of S3 means one thing for the next try and one for the user."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto

from stormsail.platform.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from stormsail.platform.storage.retry import FaultClass
from stormsail.platform.storage.s3_errors import Place, classify, error_code, request_retries

PLACE = Place("bucket", "http://127.0.0.1:1", "s3://bucket/run", "a/b")


def answer(status: int, code: str, *, retries: int = 0) -> boto.ClientError:
    metadata = {"HTTPStatusCode": status, "RetryAttempts": retries}
    return boto.ClientError({"Error": {"Code": code, "Message": "why"}, "ResponseMetadata": metadata}, "PutObject")


@pytest.mark.parametrize(
    ("status", "code", "kind", "error"),
    [
        (503, "SlowDown", FaultClass.BUSY, StorageUnavailableError),
        (503, "503", FaultClass.BUSY, StorageUnavailableError),
        (500, "InternalError", FaultClass.BUSY, StorageUnavailableError),
        (502, "502", FaultClass.BUSY, StorageUnavailableError),
        (429, "TooManyRequests", FaultClass.BUSY, StorageUnavailableError),
        (400, "RequestTimeout", FaultClass.BUSY, StorageUnavailableError),
        (400, "BadDigest", FaultClass.BUSY, StorageUnavailableError),
        (400, "XAmzContentChecksumMismatch", FaultClass.BUSY, StorageUnavailableError),
        (400, "XAmzContentSHA256Mismatch", FaultClass.BUSY, StorageUnavailableError),
        (409, "ConditionalRequestConflict", FaultClass.BUSY, StorageUnavailableError),
        (400, "ExpiredToken", FaultClass.EXPIRED, StorageUnavailableError),
        (412, "PreconditionFailed", FaultClass.FINAL, PreconditionFailedError),
        (412, "412", FaultClass.FINAL, PreconditionFailedError),
        (404, "NoSuchKey", FaultClass.FINAL, ObjectMissingError),
        (404, "404", FaultClass.FINAL, ObjectMissingError),
        (404, "NoSuchUpload", FaultClass.FINAL, ObjectMissingError),
        (404, "NoSuchBucket", FaultClass.FINAL, StorageDeniedError),
        (403, "AccessDenied", FaultClass.FINAL, StorageDeniedError),
        (403, "403", FaultClass.UNKNOWN_KEYS, StorageDeniedError),
        (403, "InvalidAccessKeyId", FaultClass.UNKNOWN_KEYS, StorageDeniedError),
        (403, "SignatureDoesNotMatch", FaultClass.UNKNOWN_KEYS, StorageDeniedError),
        (403, "RequestTimeTooSkewed", FaultClass.FINAL, StorageDeniedError),
        (301, "PermanentRedirect", FaultClass.FINAL, StorageDeniedError),
        (501, "NotImplemented", FaultClass.FINAL, StorageDeniedError),
        (507, "XMinioStorageFull", FaultClass.FINAL, StorageFullError),
        (507, "507", FaultClass.FINAL, StorageFullError),
        (400, "EntityTooLarge", FaultClass.FINAL, StorageError),
    ],
)
def test_an_answer_has_one_meaning(status: int, code: str, kind: FaultClass, error: type[StorageError]) -> None:
    fault = classify(answer(status, code), PLACE)
    assert (fault.kind, type(fault.error)) == (kind, error)
    assert fault.error.where == "s3://bucket/run/a/b"


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (boto.EndpointConnectionError(endpoint_url="u"), FaultClass.AWAY, StorageUnavailableError),
        (boto.ConnectTimeoutError(endpoint_url="u"), FaultClass.AWAY, StorageUnavailableError),
        (boto.ProxyConnectionError(proxy_url="u"), FaultClass.AWAY, StorageUnavailableError),
        (boto.ReadTimeoutError(endpoint_url="u"), FaultClass.BUSY, StorageUnavailableError),
        (boto.ConnectionClosedError(endpoint_url="u"), FaultClass.BUSY, StorageUnavailableError),
        (boto.ResponseStreamingError(error="e"), FaultClass.BUSY, StorageUnavailableError),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), FaultClass.BUSY, StorageUnavailableError),
        (boto.FlexibleChecksumError(error_msg="e"), FaultClass.BUSY, StorageUnavailableError),
        (boto.SSLError(endpoint_url="u", error="CERTIFICATE_VERIFY_FAILED"), FaultClass.FINAL, StorageDeniedError),
        (boto.SSLError(endpoint_url="u", error="EOF"), FaultClass.BUSY, StorageUnavailableError),
        (boto.HTTPClientError(error=OSError("reset")), FaultClass.BUSY, StorageUnavailableError),
        (boto.HTTPClientError(error=RecursionError()), FaultClass.FINAL, StorageDeniedError),
        (boto.NoCredentialsError(), FaultClass.FINAL, StorageDeniedError),
        (boto.ProfileNotFound(profile="p"), FaultClass.FINAL, StorageDeniedError),
        (boto.ParamValidationError(report="r"), FaultClass.FINAL, StorageError),
    ],
)
def test_a_failure_without_an_answer_has_one_meaning(
    error: Exception, kind: FaultClass, told: type[StorageError]
) -> None:
    fault = classify(error, PLACE)
    assert (fault.kind, type(fault.error)) == (kind, told)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "NoSuchBucket", "Create the bucket"),
        (403, "AccessDenied", "s3:ListBucket"),
        (403, "InvalidAccessKeyId", "Correct the credentials"),
        (403, "RequestTimeTooSkewed", "Set the clock"),
        (301, "PermanentRedirect", "storage.region"),
        (501, "NotImplemented", "when_required"),
        (400, "ExpiredToken", "Renew"),
    ],
)
def test_a_refusal_says_what_to_do(status: int, code: str, words: str) -> None:
    assert words in classify(answer(status, code), PLACE).error.todo


def test_the_answer_tells_its_code_and_how_often_it_was_asked_for() -> None:
    error = answer(412, "PreconditionFailed", retries=2)
    assert (error_code(error), request_retries(error)) == ("PreconditionFailed", 2)


def test_without_a_key_the_store_is_named() -> None:
    assert Place("b", "AWS", "s3://b/p").where == "s3://b/p"
