"""How requests are repeated and settled, on a client that fails as told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions as boto

from stormsail.platform.errors import ObjectMissingError, PreconditionFailedError, StorageDeniedError
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3_requests import S3Requests, answer_time_s
from stormsail.platform.storage.store import StoreAddress

# Waits are short and limits are not: a busy machine takes seconds for a client.
QUICK = Patience(busy_s=60.0, away_s=60.0, first_wait_s=0.001, longest_wait_s=0.002)
CLOSED = boto.ConnectionClosedError(endpoint_url="u")


@pytest.fixture
def requests(tmp_path: Path) -> S3Requests:
    keys = tmp_path / "keys.json"
    keys.write_text('{"access_key": "a", "secret_key": "s"}')
    address = StoreAddress("s3://bucket/run/", endpoint="http://127.0.0.1:9", credentials_file=str(keys))
    return S3Requests(address, QUICK)


def answer(status: int, code: str, *, retries: int = 0) -> boto.ClientError:
    metadata = {"HTTPStatusCode": status, "RetryAttempts": retries}
    return boto.ClientError({"Error": {"Code": code}, "ResponseMetadata": metadata}, "PutObject")


class Script:
    """Does what the list says, one entry a call; an entry that is no exception is the result."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)

    def __call__(self, _client: Any) -> object:
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


def test_a_body_carries_its_own_hash_where_botocore_adds_no_checksum() -> None:
    address = StoreAddress("s3://bucket/run", endpoint="http://127.0.0.1:9")
    assert S3Requests(address, QUICK).guard(b"") == {}
    guarded = S3Requests(replace(address, checksums="when_required"), QUICK)
    assert guarded.guard(b"") == {"ContentMD5": "1B2M2Y8AsgTpgAmY7PhCfg=="}  # RFC 1864's form of RFC 1321's "" sum


def never() -> object:
    raise AssertionError("nothing was uncertain")


def test_a_request_is_repeated_until_it_succeeds(requests: S3Requests) -> None:
    assert not requests.answered
    assert requests.call("get", "k", Script(CLOSED, answer(503, "SlowDown"), "done")) == "done"
    assert requests.answered


def test_a_clean_refusal_is_not_settled(requests: S3Requests) -> None:
    with pytest.raises(PreconditionFailedError):
        requests.conditional("put", "k", Script(answer(412, "PreconditionFailed")), never)


def test_a_refusal_after_a_lost_answer_is_settled_by_looking(requests: S3Requests) -> None:
    script = Script(CLOSED, answer(412, "PreconditionFailed"))
    assert requests.conditional("put", "k", script, lambda: "ours") == "ours"


def test_a_refusal_after_a_repeat_inside_the_client_is_settled_too(requests: S3Requests) -> None:
    script = Script(answer(412, "PreconditionFailed", retries=1))
    assert requests.conditional("put", "k", script, lambda: "ours") == "ours"


def test_what_is_not_ours_stays_refused(requests: S3Requests) -> None:
    with pytest.raises(PreconditionFailedError):
        requests.conditional("put", "k", Script(CLOSED, answer(412, "PreconditionFailed")), lambda: None)


def test_what_is_gone_again_stays_refused(requests: S3Requests) -> None:
    def gone() -> object:
        raise ObjectMissingError("gone")

    with pytest.raises(PreconditionFailedError):
        requests.conditional("put", "k", Script(CLOSED, answer(412, "PreconditionFailed")), gone)


def test_unknown_keys_are_read_again_once(requests: S3Requests) -> None:
    assert requests.call("get", "k", Script(answer(403, "InvalidAccessKeyId"), "done")) == "done"
    with pytest.raises(StorageDeniedError):
        requests.call("get", "k", Script(*[answer(403, "InvalidAccessKeyId")] * 2))


def test_the_cause_is_kept(requests: S3Requests) -> None:
    error = answer(403, "AccessDenied")
    with pytest.raises(StorageDeniedError) as caught:
        requests.call("get", "k", Script(error))
    assert caught.value.__cause__ is error


def test_keys_lie_below_the_prefix(requests: S3Requests) -> None:
    assert requests.at("a/b") == {"Bucket": "bucket", "Key": "run/a/b"}


def test_an_answer_is_dated_by_the_store() -> None:
    headers = {"date": "Thu, 01 Jan 1970 00:01:40 GMT"}
    assert answer_time_s({"ResponseMetadata": {"HTTPHeaders": headers}}) == 100.0
