"""The contract that every store keeps: memory, folder and a real S3 server."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormsail.platform.errors import InternalError, ObjectMissingError, PreconditionFailedError
from stormsail.platform.storage.store import ObjectInfo, ObjectStore, StoreAddress

BIG = random.Random(1).randbytes(17_000_000)  # more than one part of an upload


def keys(found: list[ObjectInfo]) -> list[str]:
    return [info.key for info in found]


def test_a_body_comes_back_as_it_was_put(store: ObjectStore) -> None:
    store.put("a/b.bin", b"\x00\xff" * 1000)
    assert store.get("a/b.bin") == b"\x00\xff" * 1000


def test_an_empty_body_is_an_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert store.head("empty").size_bytes == 0


def test_a_memoryview_is_stored_like_its_bytes(store: ObjectStore) -> None:
    store.put("view", memoryview(b"0123456789")[2:5])
    assert store.get("view") == b"234"


def test_a_put_replaces_what_was_there_and_changes_the_etag(store: ObjectStore) -> None:
    first = store.put("k", b"one")
    second = store.put("k", b"two")
    assert store.get("k") == b"two"
    assert first.etag != second.etag


def test_put_head_list_and_get_agree_about_an_object(store: ObjectStore) -> None:
    put = store.put("some/key", b"12345")
    head = store.head("some/key")
    [listed] = store.list("some/")
    body, got = store.get_with_info("some/key")
    assert body == b"12345"
    for info in (put, head, listed, got):
        assert (info.key, info.size_bytes, info.etag) == ("some/key", 5, put.etag)
        assert abs(info.modified_s - head.modified_s) < 10


@pytest.mark.parametrize(
    ("start", "end"), [(0, 3), (2, 5), (3, None), (0, None), (4, 100), (5, 5), (9, 10), (10, None), (50, 60), (0, 0)]
)
def test_a_range_is_what_a_slice_would_be(store: ObjectStore, start: int, end: int | None) -> None:
    body = b"0123456789"
    store.put("r", body)
    assert store.get("r", start=start, end=end) == body[start:end]


def test_a_range_that_runs_backwards_is_refused(store: ObjectStore) -> None:
    store.put("r", b"0123")
    with pytest.raises(InternalError):
        store.get("r", start=3, end=2)


@pytest.mark.parametrize("read", ["get", "range", "empty_range", "get_with_info", "head"])
def test_reading_what_is_not_there_says_so(store: ObjectStore, read: str) -> None:
    reads: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("no/such"),
        "range": lambda: store.get("no/such", start=1, end=2),
        "empty_range": lambda: store.get("no/such", start=1, end=1),
        "get_with_info": lambda: store.get_with_info("no/such"),
        "head": lambda: store.head("no/such"),
    }
    with pytest.raises(ObjectMissingError, match="no/such"):
        reads[read]()


def test_a_folder_of_objects_is_no_object(store: ObjectStore) -> None:
    store.put("folder/object", b"x")
    with pytest.raises(ObjectMissingError):
        store.get("folder")
    with pytest.raises(ObjectMissingError):
        store.head("folder")


def test_if_none_match_keeps_what_is_there(store: ObjectStore) -> None:
    store.put("once", b"first", if_none_match=True)
    with pytest.raises(PreconditionFailedError, match="once"):
        store.put("once", b"second", if_none_match=True)
    assert store.get("once") == b"first"


def test_if_none_match_is_refused_for_the_same_bytes_too(store: ObjectStore) -> None:
    store.put("once", b"same", if_none_match=True)
    with pytest.raises(PreconditionFailedError):
        store.put("once", b"same", if_none_match=True)


def test_if_match_replaces_only_the_expected_version(store: ObjectStore) -> None:
    first = store.put("k", b"1")
    second = store.put("k", b"2", if_match=first.etag)
    with pytest.raises(PreconditionFailedError, match="k"):
        store.put("k", b"3", if_match=first.etag)
    assert store.get("k") == b"2"
    store.put("k", b"4", if_match=second.etag)
    assert store.get("k") == b"4"


def test_if_match_is_refused_where_there_is_nothing(store: ObjectStore) -> None:
    etag = store.put("k", b"1").etag
    store.delete("k")
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"2", if_match=etag)
    with pytest.raises(ObjectMissingError):
        store.head("k")


def test_both_conditions_at_once_are_refused(store: ObjectStore) -> None:
    with pytest.raises(InternalError):
        store.put("k", b"", if_none_match=True, if_match="x")


def test_of_sixteen_threads_that_create_an_object_exactly_one_wins(store: ObjectStore) -> None:
    def create(number: int) -> int | None:
        try:
            store.put("race", b"%d" % number, if_none_match=True)
        except PreconditionFailedError:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(create, range(16)) if number is not None]
    assert len(winners) == 1
    assert store.get("race") == b"%d" % winners[0]


def test_of_sixteen_threads_that_replace_a_version_exactly_one_wins(store: ObjectStore) -> None:
    etag = store.put("race", b"start").etag

    def replace(number: int) -> int | None:
        try:
            store.put("race", b"%d" % number, if_match=etag)
        except PreconditionFailedError:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(replace, range(16)) if number is not None]
    assert len(winners) == 1
    assert store.get("race") == b"%d" % winners[0]


def test_counting_up_by_compare_and_swap_loses_no_count(store: ObjectStore) -> None:
    store.put("counter", b"0")

    def count(_: int) -> None:
        for _try in range(200):
            body, info = store.get_with_info("counter")
            try:
                store.put("counter", b"%d" % (int(body) + 1), if_match=info.etag)
            except PreconditionFailedError:
                continue
            return
        raise AssertionError

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(12)))
    assert store.get("counter") == b"12"


def test_a_list_is_in_key_order_and_below_its_prefix(store: ObjectStore) -> None:
    for key in ("a/x", "a/x.y/z", "a-b", "a.b", "a0", "b/c", "a/w/deep/er", "A"):
        store.put(key, b"")
    assert keys(list(store.list())) == ["A", "a-b", "a.b", "a/w/deep/er", "a/x", "a/x.y/z", "a0", "b/c"]
    assert keys(list(store.list("a/"))) == ["a/w/deep/er", "a/x", "a/x.y/z"]
    assert keys(list(store.list("a/x"))) == ["a/x", "a/x.y/z"]
    assert keys(list(store.list("a/x/"))) == []
    assert keys(list(store.list("none/here"))) == []


@pytest.mark.parametrize("after", ["a/x", "a", "a-b", "a.b", "a/w", "b", "c"])
def test_a_list_starts_after_a_key(store: ObjectStore, after: str) -> None:
    every = ["a-b", "a.b", "a/w/deep/er", "a/x", "a/x.y/z", "a0", "b/c"]
    for key in every:
        store.put(key, b"")
    assert keys(list(store.list("", start_after=after))) == [key for key in every if key > after]


def test_a_list_sees_what_was_just_put_and_deleted(store: ObjectStore) -> None:
    for number in range(20):
        store.put(f"l/{number:02d}", b"")
        assert len(list(store.list("l/"))) == number + 1
    store.delete("l/07")
    assert "l/07" not in keys(list(store.list("l/")))


def test_a_list_goes_over_all_pages(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"pages/{number:05d}", b""), range(1205)))
    assert keys(list(store.list("pages/"))) == [f"pages/{number:05d}" for number in range(1205)]
    assert len(list(store.list("pages/", start_after="pages/01199"))) == 5


def test_delete_removes_and_may_be_repeated(store: ObjectStore) -> None:
    store.put("gone", b"x")
    store.delete("gone")
    store.delete("gone")
    store.delete("never/was")
    with pytest.raises(ObjectMissingError):
        store.get("gone")
    store.put("gone", b"back", if_none_match=True)


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "a/../b", "a b", "ä", "a\\b", "a~", "a/./b", "x" * 1000])
def test_keys_that_stores_disagree_about_are_refused_by_all(store: ObjectStore, key: str) -> None:
    for attempt in (
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.get_with_info(key),
        lambda: store.delete(key),
        lambda: store.multipart(key),
    ):
        with pytest.raises(InternalError):
            attempt()


def test_a_prefix_that_no_key_can_have_is_refused(store: ObjectStore) -> None:
    for prefix in ("../", "/", "a//", "a b"):
        with pytest.raises(InternalError):
            list(store.list(prefix))


def test_an_upload_in_parts_becomes_one_object(store: ObjectStore) -> None:
    upload = store.multipart("big/object")
    for start in range(0, len(BIG), 3_000_001):
        upload.write(memoryview(BIG)[start : start + 3_000_001])
    assert list(store.list("big/")) == []
    info = upload.complete()
    assert info.size_bytes == len(BIG)
    assert info == store.head("big/object")
    assert store.get("big/object") == BIG
    assert store.get("big/object", start=16_777_000, end=16_778_000) == BIG[16_777_000:16_778_000]


def test_a_small_upload_becomes_one_object(store: ObjectStore) -> None:
    upload = store.multipart("small")
    upload.write(b"ab")
    upload.write(b"c")
    assert upload.complete(if_none_match=True).size_bytes == 3
    assert store.get("small") == b"abc"


@pytest.mark.parametrize("body", [b"small", BIG], ids=["small", "big"])
def test_an_upload_does_not_replace_what_is_there_if_told_so(store: ObjectStore, body: bytes) -> None:
    store.put("taken", b"first")
    upload = store.multipart("taken")
    upload.write(body)
    with pytest.raises(PreconditionFailedError):
        upload.complete(if_none_match=True)
    upload.abort()
    assert store.get("taken") == b"first"
    assert store.abort_stale_uploads("", older_than_s=-60) == 0


@pytest.mark.parametrize("body", [b"small", BIG], ids=["small", "big"])
def test_an_aborted_upload_leaves_nothing(store: ObjectStore, body: bytes) -> None:
    upload = store.multipart("aborted")
    upload.write(body)
    upload.abort()
    upload.abort()
    with pytest.raises(InternalError):
        upload.write(b"more")
    with pytest.raises(InternalError):
        upload.complete()
    assert list(store.list()) == []
    assert store.abort_stale_uploads("", older_than_s=-60) == 0


def test_only_old_uploads_below_the_prefix_are_aborted(store: ObjectStore) -> None:
    for key in ("here/one", "here/two", "there/three"):
        store.multipart(key).write(BIG)
    assert store.abort_stale_uploads("here/", older_than_s=3600) == 0
    assert store.abort_stale_uploads("here/", older_than_s=-60) == 2
    assert store.abort_stale_uploads("", older_than_s=-60) == 1
    assert list(store.list()) == []


def test_every_store_has_a_url_for_people(store: ObjectStore) -> None:
    assert "://" in store.url
    assert isinstance(store, ObjectStore)


def test_a_child_address_lies_below_its_parent() -> None:
    assert StoreAddress("s3://bucket/").child("run").url == "s3://bucket/run"
    assert StoreAddress("file:///a/b", timeout_s=3.0).child("run") == StoreAddress("file:///a/b/run", timeout_s=3.0)
