"""Uploads in parts: what is sent when. What they promise is in `test_store.py` and `test_s3.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.fake_s3 import FakeS3, Refusal, Stall
from tests.support.fault_proxy import FaultProxy

from stormsail.platform.errors import PreconditionFailedError, StorageDeniedError, StorageUnavailableError
from stormsail.platform.storage import s3_upload
from stormsail.platform.storage.retry import Patience
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


@pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
def test_an_upload_that_cannot_begin_can_be_given_up(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.rule = lambda *_: Refusal(403, "AccessDenied")
    upload = S3Store(fake_address).multipart("big")
    with pytest.raises(StorageDeniedError):
        upload.write(b"a" * s3_upload.PART_BYTES)
    upload.abort()


@pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
def test_an_upload_whose_part_stalls_ends_names_the_part_and_leaves_nothing(
    fake_s3: FakeS3, fake_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_upload, "PART_BYTES", 1000)
    brief = Patience(busy_s=0.3, away_s=0.3, first_wait_s=0.02, longest_wait_s=0.05)
    store = S3Store(replace(fake_address, timeout_s=0.5), patience=brief)
    upload = store.multipart("packs/big")
    fake_s3.rule = lambda _method, path, _headers: Stall(30.0) if "partNumber=2" in path else None
    with pytest.raises(StorageUnavailableError, match=r"timed out.*upload of part 2 was tried for \d+ s") as caught:
        upload.write(b"a" * 2500)
    assert "packs/big" in caught.value.where
    assert len(fake_s3.uploads) == 1
    upload.abort()
    assert (fake_s3.uploads, fake_s3.objects) == ({}, {})
    fake_s3.rule = lambda *_: None
    again = store.multipart("packs/big")
    again.write(b"a" * 2500)
    assert again.complete().size_bytes == 2500
    assert store.get("packs/big") == b"a" * 2500


def test_an_upload_whose_answer_was_lost_is_not_taken_for_another_object(
    proxy: FaultProxy, s3_address: StoreAddress
) -> None:
    body = b"a" * (s3_upload.PART_BYTES + 7)
    S3Store(s3_address).put("taken", b"b" * len(body))
    upload = S3Store(replace(s3_address, endpoint=proxy.endpoint)).multipart("taken")
    upload.write(body)
    proxy.cut_answers("uploadId", times=1)
    with pytest.raises(PreconditionFailedError):
        upload.complete(if_none_match=True)
    upload.abort()
    assert S3Store(s3_address).get("taken", end=3) == b"bbb"
