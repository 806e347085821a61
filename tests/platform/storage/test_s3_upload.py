"""Uploads in parts: what is sent when. What they promise is in `test_store.py` and `test_s3.py`."""

from __future__ import annotations

import pytest
from tests.support.fake_s3 import FakeS3, Refusal
from tests.support.fault_proxy import FaultProxy

from stormsail.platform.errors import PreconditionFailedError, StorageDeniedError
from stormsail.platform.storage import s3_upload
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import StoreAddress


def test_a_small_upload_is_one_put(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    upload = S3Store(fake_address).multipart("small")
    upload.write(b"x")
    assert fake_s3.requests == []
    upload.complete()
    assert [method for method, _ in fake_s3.requests] == ["PUT"]


def test_full_parts_leave_at_once_and_the_rest_at_the_end(s3_address: StoreAddress) -> None:
    store = S3Store(s3_address)
    upload = store.multipart("parts")
    upload.write(b"a" * (s3_upload.PART_BYTES + 1))
    assert store.abort_stale_uploads("", older_than_s=3600) == 0
    assert upload.complete().size_bytes == s3_upload.PART_BYTES + 1
    assert store.get("parts", start=s3_upload.PART_BYTES - 1) == b"aa"


def test_an_upload_that_cannot_begin_can_be_given_up(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.rule = lambda *_: Refusal(403, "AccessDenied")
    upload = S3Store(fake_address).multipart("big")
    with pytest.raises(StorageDeniedError):
        upload.write(b"a" * s3_upload.PART_BYTES)
    upload.abort()


def test_an_upload_whose_answer_was_lost_is_not_taken_for_another_object(
    proxy: FaultProxy, s3_address: StoreAddress
) -> None:
    from dataclasses import replace

    body = b"a" * (s3_upload.PART_BYTES + 7)
    S3Store(s3_address).put("taken", b"b" * len(body))
    upload = S3Store(replace(s3_address, endpoint=proxy.endpoint)).multipart("taken")
    upload.write(body)
    proxy.cut_answers("uploadId", times=1)
    with pytest.raises(PreconditionFailedError):
        upload.complete(if_none_match=True)
    upload.abort()
    assert S3Store(s3_address).get("taken", end=3) == b"bbb"
