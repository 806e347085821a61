"""Whatever a server answers, an operation gives the truth or a storage error; no other error, and nothing made up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.fake_s3 import FakeS3, Raw

from stormsail.platform.errors import StorageDeniedError, StorageError
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import ObjectInfo, StoreAddress

pytestmark = pytest.mark.slow

NO_PATIENCE = Patience(busy_s=0.0, away_s=0.0)
BODY = b"what was put here"
LISTED = (
    "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>run/k</Key><Size>17</Size>"
    '<ETag>"e"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>'
)
TEXTS = st.sampled_from(
    [
        "",
        "<html><body>502 Bad Gateway</body></html>",
        "<Error><Code>InternalError</Code><Message>try again</Message></Error>",
        "<Error><Code>SlowDown</Code></Error>",
        "<Error/>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><IsTruncated>maybe</IsTruncated></ListBucketResult>",
        LISTED,
        LISTED[:100],
        LISTED.replace("<Size>17</Size>", ""),
        LISTED.replace("<Size>17</Size>", "<Size>many</Size>"),
        LISTED.replace("2026-01-01T00:00:00.000Z", "yesterday"),
        LISTED.replace('<ETag>"e"</ETag>', ""),
        LISTED.replace("<Key>run/k</Key>", ""),
        '{"message": "this is not S3"}',
    ]
)
HEADERS = st.lists(
    st.sampled_from(
        [
            ("ETag", '"e"'),
            ("ETag", ""),
            ("Last-Modified", "Wed, 01 Jan 2026 00:00:00 GMT"),
            ("Last-Modified", "yesterday"),
            ("Content-Range", "bytes 0-3/17"),
            ("Content-Range", "bytes 5-9/17"),
            ("Content-Range", "bytes */*"),
            ("Date", "never"),
            ("x-amz-checksum-crc32", "AAAAAA=="),
            ("Location", "http://127.0.0.1:9/elsewhere"),
        ]
    ),
    max_size=4,
    unique_by=lambda pair: pair[0],
).map(tuple)
STATUSES = st.sampled_from([200, 200, 204, 206, 304, 307, 400, 403, 404, 405, 409, 412, 416, 429, 500, 503, 507])


@st.composite
def answers(draw: st.DrawFn) -> Raw:
    status = draw(STATUSES)
    body = b"" if status in (204, 304) else draw(st.one_of(TEXTS.map(str.encode), st.binary(max_size=30)))
    promised = draw(st.sampled_from([None, None, None, len(body) + 5])) if body else None
    return Raw(status, body, draw(HEADERS), promised)


OPERATIONS: dict[str, Callable[[S3Store], object]] = {
    "put": lambda store: store.put("k", BODY),
    "put new": lambda store: store.put("k", BODY, if_none_match=True),
    "put over": lambda store: store.put("k", BODY, if_match='"e"'),
    "get": lambda store: store.get("k"),
    "get range": lambda store: store.get("k", start=0, end=4),
    "get with info": lambda store: store.get_with_info("k"),
    "head": lambda store: store.head("k"),
    "list": lambda store: list(store.list()),
    "delete": lambda store: store.delete("k"),
    "abort": lambda store: store.abort_stale_uploads("", older_than_s=1.0),
}


@pytest.fixture
def strange(fake_s3: FakeS3, fake_address: StoreAddress, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    """A store on that server; botocore does not wait between its tries."""
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    yield S3Store(fake_address, patience=NO_PATIENCE)
    fake_s3.rule = lambda *_: None


def check(strange: S3Store, fake_s3: FakeS3, name: str, answer: Raw) -> None:
    fake_s3.rule = lambda *_: answer
    try:
        found = OPERATIONS[name](strange)
    except StorageError:
        return
    if isinstance(found, bytes):
        assert found == answer.body or (name == "get range" and found == b"")
    if isinstance(found, ObjectInfo):
        assert found.etag


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(OPERATIONS)), answer=answers())
def test_any_answer_is_a_result_or_a_storage_error(strange: S3Store, fake_s3: FakeS3, name: str, answer: Raw) -> None:
    check(strange, fake_s3, name, answer)


def test_a_circle_of_redirects_is_told(strange: S3Store, fake_s3: FakeS3) -> None:
    fake_s3.rule = lambda *_: Raw(301)
    with pytest.raises(StorageDeniedError, match="redirects in a circle") as caught:
        strange.put("k", BODY)
    assert "storage.region" in caught.value.todo


def test_a_page_of_a_proxy_in_place_of_an_answer_is_tried_again(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    """A conditional put that was answered so may have been carried out: it is settled like any lost answer."""
    answers = [Raw(200, b"<html>sign in to the network</html>")]
    fake_s3.rule = lambda *_: answers.pop() if answers else None
    patient = S3Store(fake_address, patience=Patience(busy_s=60.0, away_s=60.0, first_wait_s=0.01))
    info = patient.put("k", BODY, if_none_match=True)
    assert patient.get_with_info("k") == (BODY, info)
