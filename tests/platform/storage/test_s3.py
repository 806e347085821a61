"""S3 through real faults: lost answers, cut bodies, busy and unreachable servers, credentials that end."""

from __future__ import annotations

import json
import pickle
import re
import socket
import threading
import time
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_s3 import FakeS3, Raw, Refusal
from tests.support.fault_proxy import FaultProxy

from stormsail.platform.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from stormsail.platform.storage import s3_upload
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3 import S3Store, _as_sent
from stormsail.platform.storage.s3_client import ClientSource
from stormsail.platform.storage.store import StoreAddress

pytestmark = pytest.mark.slow  # waits as long as its retries do

BRIEF = Patience(busy_s=1.0, away_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)
STEADY = Patience(busy_s=20.0, away_s=20.0, first_wait_s=0.02, longest_wait_s=0.1)


def behind(proxy: FaultProxy, address: StoreAddress) -> S3Store:
    return S3Store(replace(address, endpoint=proxy.endpoint), patience=STEADY)


# --- answers that are lost after the server acted ---------------------------------------------------------


def test_a_conditional_put_whose_answer_was_lost_has_succeeded(proxy: FaultProxy, s3_address: StoreAddress) -> None:
    proxy.cut_answers("/once")
    info = behind(proxy, s3_address).put("once", b"mine", if_none_match=True)
    assert proxy.cuts == 1
    assert S3Store(s3_address).get_with_info("once") == (b"mine", info)


def test_a_conditional_put_is_settled_after_more_losses_than_botocore_repeats(
    proxy: FaultProxy, s3_address: StoreAddress
) -> None:
    proxy.cut_answers("PUT", times=5)
    behind(proxy, s3_address).put("once", b"mine", if_none_match=True)
    assert proxy.cuts == 5
    assert S3Store(s3_address).get("once") == b"mine"


def test_a_swap_whose_answer_was_lost_has_succeeded(proxy: FaultProxy, s3_address: StoreAddress) -> None:
    store = behind(proxy, s3_address)
    first = store.put("pointer", b"1")
    proxy.cut_answers("PUT")
    second = store.put("pointer", b"2", if_match=first.etag)
    assert proxy.cuts == 1
    assert store.put("pointer", b"3", if_match=second.etag).size_bytes == 1


def test_a_lost_answer_does_not_hide_that_somebody_else_was_first(proxy: FaultProxy, s3_address: StoreAddress) -> None:
    S3Store(s3_address).put("once", b"theirs")
    proxy.cut_answers("PUT")
    with pytest.raises(PreconditionFailedError):
        behind(proxy, s3_address).put("once", b"mine", if_none_match=True)
    assert proxy.cuts == 1
    assert S3Store(s3_address).get("once") == b"theirs"


def test_a_completed_upload_whose_answer_was_lost_has_succeeded(proxy: FaultProxy, s3_address: StoreAddress) -> None:
    body = b"x" * 17_000_000
    upload = behind(proxy, s3_address).multipart("big")
    upload.write(body)
    proxy.cut_answers("POST", times=3)
    info = upload.complete(if_none_match=True)
    assert proxy.cuts == 3
    assert info.size_bytes == len(body)
    assert S3Store(s3_address).get("big") == body


def test_a_body_that_breaks_off_is_read_again(proxy: FaultProxy, s3_address: StoreAddress) -> None:
    body = bytes(range(256)) * 4000
    store = behind(proxy, s3_address)
    store.put("body", body)
    proxy.cut_answers("GET", times=3, after_bytes=200_000)
    assert store.get("body") == body
    proxy.cut_answers("GET", times=3, after_bytes=200_000)
    assert store.get("body", start=100, end=900_000) == body[100:900_000]
    assert proxy.cuts == 6


def test_a_body_that_always_breaks_off_is_an_error_and_never_short(proxy: FaultProxy, s3_address: StoreAddress) -> None:
    S3Store(s3_address).put("body", b"y" * 500_000)
    proxy.cut_answers("GET", times=10_000, after_bytes=100_000)
    store = S3Store(replace(s3_address, endpoint=proxy.endpoint), patience=BRIEF)
    with pytest.raises(StorageUnavailableError, match="broke off"):
        store.get("body")


# --- servers that are busy, away or full ------------------------------------------------------------------


def test_slow_down_is_waited_out_by_many_ranks_and_spreads_them(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    until = time.monotonic() + 1.0
    fake_s3.rule = lambda *_: Refusal(503, "SlowDown") if time.monotonic() < until else None
    errors: list[StorageError] = []

    def save(rank: int) -> None:
        try:
            S3Store(fake_address, patience=STEADY).put(f"rank/{rank}", b"shard", if_none_match=True)
        except StorageError as error:
            errors.append(error)

    ranks = [threading.Thread(target=save, args=(rank,)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert not errors
    assert len(list(S3Store(fake_address).list("rank/"))) == 4


def test_slow_down_that_does_not_end_is_told_with_what_was_tried(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.rule = lambda *_: Refusal(503, "SlowDown")
    with pytest.raises(StorageUnavailableError, match=r"503 SlowDown; put was tried for \d+ s") as caught:
        S3Store(fake_address, patience=BRIEF).put("k", b"")
    assert caught.value.where == "s3://bucket/run/k"


def test_a_conflict_with_another_conditional_put_is_tried_again(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    refusals = [Refusal(409, "ConditionalRequestConflict")] * 3
    fake_s3.rule = lambda *_: refusals.pop() if refusals else None
    S3Store(fake_address, patience=STEADY).put("k", b"mine", if_none_match=True)
    assert fake_s3.objects["run/k"] == b"mine"


def test_an_endpoint_where_nobody_answers_is_named(fake_address: StoreAddress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    store = S3Store(replace(fake_address, endpoint=f"http://127.0.0.1:{port}"), patience=BRIEF)
    with pytest.raises(StorageUnavailableError, match=rf"http://127\.0\.0\.1:{port} .*tried for \d+ s") as caught:
        store.get("k")
    assert "storage.endpoint" in caught.value.todo
    with pytest.raises(StorageUnavailableError):
        list(store.list())


def test_a_server_that_never_answers_costs_a_bounded_time(fake_address: StoreAddress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = S3Store(replace(fake_address, endpoint=endpoint, timeout_s=0.2), patience=BRIEF)
        with pytest.raises(StorageUnavailableError, match="timed out"):
            store.put("k", b"")


def test_a_full_store_says_so_at_once(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.rule = lambda *_: Refusal(507, "XMinioStorageFull")
    with pytest.raises(StorageFullError):
        S3Store(fake_address, patience=BRIEF).put("k", b"")


# --- refusals ---------------------------------------------------------------------------------------------


def test_a_missing_bucket_is_never_taken_for_missing_objects(s3_address: StoreAddress) -> None:
    store = S3Store(replace(s3_address, url="s3://no-such-bucket/run"))
    for attempt in (
        lambda: store.put("k", b""),
        lambda: store.get("k"),
        lambda: store.head("k"),
        lambda: list(store.list()),
        lambda: store.abort_stale_uploads("", older_than_s=0),
    ):
        with pytest.raises(StorageDeniedError, match="no bucket 'no-such-bucket'"):
            attempt()


def test_an_unknown_access_key_is_told_with_what_to_do(s3_address: StoreAddress, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"access_key": "nobody", "secret_key": "x"}')
    with pytest.raises(StorageDeniedError, match="credentials for bucket 'stormsail'") as caught:
        S3Store(replace(s3_address, credentials_file=str(keys))).get("k")
    assert "storage.profile" in caught.value.todo


def test_a_wrong_secret_is_told(s3_address: StoreAddress, tmp_path: Path) -> None:
    assert s3_address.credentials_file
    held = json.loads(Path(s3_address.credentials_file).read_text())
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({**held, "secret_key": "wrong"}))
    with pytest.raises(StorageDeniedError, match="SignatureDoesNotMatch"):
        S3Store(replace(s3_address, credentials_file=str(keys))).put("k", b"")


def test_a_denied_bucket_is_told_with_the_rights_that_are_needed(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.rule = lambda *_: Refusal(403, "AccessDenied")
    with pytest.raises(StorageDeniedError, match="'bucket' is denied") as caught:
        S3Store(fake_address).head("k")
    assert "s3:ListBucket" in caught.value.todo


def test_a_store_without_checksum_headers_gets_a_hint_and_the_setting_works(
    fake_s3: FakeS3, fake_address: StoreAddress
) -> None:
    def refuse(_method: str, _path: str, headers: Message) -> Refusal | None:
        has_sum = any(name.lower().startswith("x-amz-checksum") for name in headers)
        return Refusal(501, "NotImplemented", "A header you provided implies functionality") if has_sum else None

    fake_s3.rule = refuse
    with pytest.raises(StorageDeniedError) as caught:
        S3Store(fake_address).put("k", b"body")
    assert "storage.checksums: when_required" in caught.value.todo
    S3Store(replace(fake_address, checksums="when_required")).put("k", b"body")
    assert fake_s3.objects["run/k"] == b"body"


# --- temporary credentials --------------------------------------------------------------------------------


def test_credentials_that_ended_are_read_again(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    keys = Path(fake_address.credentials_file or "")

    def expire(_method: str, _path: str, headers: Message) -> Refusal | None:
        if "Credential=old/" not in headers["Authorization"]:
            return None
        keys.write_text('{"access_key": "fresh", "secret_key": "secret"}')
        return Refusal(400, "ExpiredToken")

    fake_s3.rule = expire
    store = S3Store(fake_address, patience=BRIEF)
    store.put("k", b"body", if_none_match=True)
    assert fake_s3.objects["run/k"] == b"body"


@pytest.mark.parametrize("refusal", [Refusal(400, "ExpiredToken"), Refusal(403, "InvalidAccessKeyId")])
def test_a_head_that_cannot_say_why_it_was_refused_reads_the_credentials_again(
    fake_s3: FakeS3, fake_address: StoreAddress, refusal: Refusal
) -> None:
    keys = Path(fake_address.credentials_file or "")

    def expire(_method: str, _path: str, headers: Message) -> Refusal | None:
        if "Credential=old/" not in headers["Authorization"]:
            return None
        keys.write_text('{"access_key": "fresh", "secret_key": "secret"}')
        return refusal

    store = S3Store(fake_address, patience=BRIEF)
    store.put("k", b"body")
    fake_s3.rule = expire
    assert store.head("k").size_bytes == 4


def test_a_head_that_is_always_refused_without_a_reason_is_told(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.rule = lambda *_: Refusal(400, "ExpiredToken")
    with pytest.raises(StorageUnavailableError, match=r"400 and no reason.*head was tried for") as caught:
        S3Store(fake_address, patience=BRIEF).head("k")
    assert "temporary credentials" in caught.value.todo


def test_keys_that_were_replaced_are_read_again(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    store = S3Store(fake_address, patience=BRIEF)
    store.put("k", b"1")
    Path(fake_address.credentials_file or "").write_text('{"access_key": "fresh", "secret_key": "secret"}')
    fake_s3.rule = lambda _method, _path, headers: (
        None if "Credential=fresh/" in headers["Authorization"] else Refusal(403, "InvalidAccessKeyId")
    )
    store.put("k", b"2")
    assert fake_s3.objects["run/k"] == b"2"


def test_credentials_that_stay_expired_are_an_error_that_may_pass(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.rule = lambda *_: Refusal(400, "ExpiredToken")
    with pytest.raises(StorageUnavailableError, match="credentials have expired"):
        S3Store(fake_address, patience=BRIEF).put("k", b"")


# --- bodies that are damaged on their way -------------------------------------------------------------------


@pytest.mark.parametrize("checksums", ["when_supported", "when_required"])
def test_a_body_that_is_damaged_on_its_way_is_sent_again(
    s3_address: StoreAddress, checksums: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = replace(s3_address, checksums=checksums, timeout_s=29.0)  # a client of its own: it is tampered with
    store, struck = S3Store(address, patience=STEADY), set()

    def turn_a_bit(request: Any, event_name: str, **_: object) -> None:
        if event_name not in struck:
            struck.add(event_name)
            request.body = bytes([request.body[0] ^ 1]) + request.body[1:]

    events = ClientSource.of(address).get().meta.events
    for operation in ("PutObject", "UploadPart"):
        events.register(f"before-send.s3.{operation}", turn_a_bit)
    monkeypatch.setattr(s3_upload, "PART_BYTES", 5 << 20)
    body = b"parts" * (1 << 20) + b"!"
    store.put("small", body[:100])
    upload = store.multipart("large")
    upload.write(body)
    upload.complete()
    assert (store.get("small"), store.get("large")) == (body[:100], body)
    assert struck == {"before-send.s3.PutObject", "before-send.s3.UploadPart"}


# --- travel -----------------------------------------------------------------------------------------------


def test_a_pickled_store_opens_its_own_connection_and_holds_no_secret(s3_address: StoreAddress) -> None:
    store = S3Store(s3_address)
    store.put("k", b"v")
    sent = pickle.dumps(store)
    assert Path(s3_address.credentials_file or "").read_bytes()[20:40] not in sent
    again = pickle.loads(sent)
    assert again.get("k") == b"v"
    assert again.url == store.url


def test_objects_that_are_not_ours_are_left_out_of_a_list(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    fake_s3.objects = {"run/a": b"", "run/folder/": b"", "run/with space": b"", "other/b": b""}
    assert [info.key for info in S3Store(fake_address).list()] == ["a"]


def test_a_server_that_lists_more_than_was_asked_for_shows_nothing_of_other_runs(
    fake_s3: FakeS3, fake_address: StoreAddress
) -> None:
    """Chopped to the length of our prefix, another run's keys would look like ours."""

    def rule(method: str, path: str, _headers: Message) -> Raw | None:
        if method == "DELETE":
            aborted.append(path)
            return Raw(204)
        kind, age = ("Upload", "Initiated") if "uploads" in path else ("Contents", "LastModified")
        rows = "".join(
            f'<{kind}><Key>{key}</Key><UploadId>1</UploadId><Size>1</Size><ETag>"e"</ETag>'
            f"<{age}>2020-01-01T00:00:00.000Z</{age}></{kind}>"
            for key in ("run/packs/a", "run/parts/b", "sun/packs/c", "run2/packs/d")
        )
        return Raw(200, f"<R><IsTruncated>false</IsTruncated>{rows}</R>".encode())

    aborted: list[str] = []
    fake_s3.rule = rule
    assert [info.key for info in S3Store(fake_address).list("packs/")] == ["packs/a"]
    assert S3Store(fake_address).abort_stale_uploads("packs/", older_than_s=1.0) == 1
    assert [path.partition("?")[0] for path in aborted] == ["/bucket/run/packs/a"]


def test_a_list_that_goes_in_a_circle_ends_with_an_error(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    pages = 0

    def rule(*_: object) -> Raw:
        nonlocal pages
        pages += 1
        token = f"<NextContinuationToken>{'abc'[pages % 3]}</NextContinuationToken>"
        return Raw(200, f"<R><IsTruncated>true</IsTruncated>{token}</R>".encode())

    fake_s3.rule = rule
    with pytest.raises(StorageError, match="does not advance"):
        list(S3Store(fake_address).list())
    assert pages == 4


def test_many_uploads_of_one_key_over_pages_are_all_seen(fake_s3: FakeS3, fake_address: StoreAddress) -> None:
    aborted = []

    def rule(method: str, path: str, _headers: Message) -> Raw:
        if method == "DELETE":
            aborted.append(path.rpartition("uploadId=")[2])
            return Raw(204)
        page = int((re.search(r"upload-id-marker=(\d)", path) or ["", "0"])[1]) + 1
        upload = f"<Upload><Key>run/k</Key><UploadId>{page}</UploadId><Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload>"
        more = (
            f"<NextKeyMarker>run/k</NextKeyMarker><NextUploadIdMarker>{page}</NextUploadIdMarker>" if page < 3 else ""
        )
        truncated = f"<IsTruncated>{str(page < 3).lower()}</IsTruncated>"
        return Raw(200, f"<ListMultipartUploadsResult>{truncated}{more}{upload}</ListMultipartUploadsResult>".encode())

    fake_s3.rule = rule
    assert S3Store(fake_address).abort_stale_uploads("", older_than_s=1.0) == 3
    assert aborted == ["1", "2", "3"]


def test_a_missing_object_in_a_bucket_that_answers_is_only_missing(fake_address: StoreAddress) -> None:
    with pytest.raises(ObjectMissingError):
        S3Store(fake_address).head("nothing")


def test_what_is_sent_whole_is_not_copied_first() -> None:
    pack = bytearray(b"0123456789")
    assert _as_sent(memoryview(pack)) is pack
    assert _as_sent(memoryview(pack)[2:5]) == b"234"
    assert _as_sent(memoryview(pack).toreadonly()) == pack
