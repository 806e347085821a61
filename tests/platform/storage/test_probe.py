"""The probe accepts every store of ours and refuses those that ignore conditions or forget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.support.fake_s3 import FakeS3, Raw, Refusal

from stormsail.platform.errors import ObjectMissingError, StorageDeniedError, StorageError, StorageUnavailableError
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.probe import probe_store
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import ObjectInfo, ObjectStore, StoreAddress


class IgnoresIfMatch(MemoryStore):
    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return super().put(key, data, if_none_match=if_none_match)


class ListsLate(MemoryStore):
    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return iter(())


class ForgetsReplacements(MemoryStore):
    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.head(key)
        return b"one"


def test_a_good_store_passes_and_is_left_empty(store: ObjectStore) -> None:
    probe_store(store)
    assert list(store.list()) == []


def test_a_server_that_ignores_conditions_is_refused_and_left_empty(
    fake_s3: FakeS3, fake_address: StoreAddress
) -> None:
    fake_s3.conditions = False
    with pytest.raises(StorageDeniedError, match="ignores If-None-Match") as caught:
        probe_store(S3Store(fake_address))
    assert "embedded" in caught.value.todo
    assert fake_s3.objects == {}


def test_the_same_server_passes_once_it_honours_them(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    probe_store(S3Store(fake_address))
    assert fake_s3.objects == {}


def test_a_store_that_ignores_if_match_only_is_refused() -> None:
    store = IgnoresIfMatch()
    with pytest.raises(StorageDeniedError, match="ignores If-Match"):
        probe_store(store)
    assert list(store.list()) == []


class IgnoresRanges(MemoryStore):
    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return super().get(key)


def test_a_store_that_ignores_ranges_is_refused_before_a_restore_needs_them(
    fake_s3: FakeS3, fake_address: StoreAddress
) -> None:
    store = IgnoresRanges()
    with pytest.raises(StorageDeniedError, match="another part"):
        probe_store(store)
    assert list(store.list()) == []
    whole = (("ETag", '"e"'), ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"))
    fake_s3.rule = lambda _method, _path, headers: Raw(200, b"three", whole) if headers.get("Range") else None
    with pytest.raises(StorageError, match="another range"):
        probe_store(S3Store(fake_address))
    assert fake_s3.objects == {}


def test_a_store_that_lists_late_is_refused() -> None:
    with pytest.raises(StorageDeniedError, match="does not list"):
        probe_store(ListsLate())


def test_a_store_that_gives_back_old_bytes_is_refused() -> None:
    with pytest.raises(StorageDeniedError, match="does not give back"):
        probe_store(ForgetsReplacements())


def test_a_store_that_cannot_be_written_is_refused_as_denied(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.rule = lambda method, *_: Refusal(403, "AccessDenied") if method == "PUT" else None
    with pytest.raises(StorageDeniedError, match="denied"):
        probe_store(S3Store(fake_address))


def test_a_store_that_is_away_is_unavailable_and_not_refused(fake_address: StoreAddress) -> None:
    store = S3Store(replace(fake_address, endpoint="http://127.0.0.1:9"), patience=Patience(away_s=0.1))
    with pytest.raises(StorageUnavailableError):
        probe_store(store)


def test_the_probed_object_is_gone(store: ObjectStore) -> None:
    probe_store(store)
    with pytest.raises(ObjectMissingError):
        store.get("probe/anything")
