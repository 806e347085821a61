"""Checkpoints on an S3 that misbehaves: late, refused or read again, but never half, and never taken for damaged."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.fake_s3 import FakeS3, Raw, Refusal, Stall

from stormsail.platform.checkpoint.keys import commit_key
from stormsail.platform.checkpoint.reader import load_manifest, read_shards, scan_commits, verify
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.errors import (
    CheckpointError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.probe import probe_store
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import StoreAddress

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

pytestmark = pytest.mark.slow

OLD, REF = CheckpointRef(1, 10), CheckpointRef(1, 20)
BRIEF = Patience(busy_s=0.3, away_s=0.3, first_wait_s=0.02, longest_wait_s=0.05)
STEADY = Patience(busy_s=30.0, away_s=30.0, first_wait_s=0.02, longest_wait_s=0.05)


@pytest.fixture
def store(kit: Kit, fake_address: StoreAddress) -> S3Store:
    """A run with one checkpoint; gives up soon."""
    made = S3Store(replace(fake_address, timeout_s=20.0), patience=BRIEF)
    ensure_format(made)
    kit.save(made, kit.state(1), OLD)
    return made


def only_the_old_one_is_there(kit: Kit, store: S3Store) -> None:
    assert [item.ref for item in scan_commits(store).commits] == [OLD]
    assert verify(store, OLD) == []
    assert kit.same(kit.restore(store, OLD, 2), kit.state(1))


def test_slow_down_makes_a_save_late_and_nothing_else(kit: Kit, store: S3Store, fake_s3: FakeS3) -> None:
    until = time.monotonic() + 0.5
    fake_s3.rule = lambda *_: Refusal(503, "SlowDown") if time.monotonic() < until else None
    kit.save(S3Store(store._address, patience=STEADY), kit.state(2), REF)
    assert verify(store, REF) == []


def test_slow_down_that_does_not_end_costs_the_save(kit: Kit, store: S3Store, fake_s3: FakeS3) -> None:
    fake_s3.rule = lambda *_: Refusal(503, "SlowDown")
    with pytest.raises(StorageUnavailableError, match="503 SlowDown; put was tried"):
        kit.save(store, kit.state(2), REF)
    with pytest.raises(StorageUnavailableError):  # and is never "there is none"
        scan_commits(store)
    fake_s3.rule = lambda *_: None
    only_the_old_one_is_there(kit, store)


@pytest.mark.parametrize("stage", ["packs/", "parts/", "manifests/", "commits/"])
def test_a_server_that_stalls_for_ever_costs_a_bounded_time_and_the_save(
    kit: Kit, store: S3Store, fake_s3: FakeS3, stage: str
) -> None:
    quick = S3Store(replace(store._address, timeout_s=1.5), patience=BRIEF)
    fake_s3.rule = lambda method, path, _headers: Stall(30.0) if method == "PUT" and stage in path else None
    with pytest.raises(StorageUnavailableError, match="timed out") as caught:
        kit.save(quick, kit.state(2), REF)
    assert stage in caught.value.where
    fake_s3.rule = lambda *_: None
    only_the_old_one_is_there(kit, store)


@pytest.mark.parametrize("stage", ["commits/", "manifests/", "packs/", "prefix=run%2Fcommits%2F"])
def test_a_restore_from_a_server_that_never_answers_ends_with_a_clear_error_and_never_with_none(
    kit: Kit, store: S3Store, fake_s3: FakeS3, stage: str
) -> None:
    quick = S3Store(replace(store._address, timeout_s=0.5), patience=BRIEF)
    fake_s3.rule = lambda method, path, _headers: Stall(30.0) if method == "GET" and stage in path else None
    with pytest.raises(StorageUnavailableError, match="timed out"):
        read_shards(quick, load_manifest(quick, scan_commits(quick).commits[-1]), kit.specs(0, 1))
    fake_s3.rule = lambda *_: None
    only_the_old_one_is_there(kit, store)


def test_a_body_that_stalls_half_way_is_read_again_and_at_last_given_up(
    kit: Kit, store: S3Store, fake_s3: FakeS3
) -> None:
    quick = S3Store(replace(store._address, timeout_s=0.5), patience=BRIEF)
    manifest = load_manifest(store, OLD)
    fake_s3.stalls = 1
    patient = S3Store(quick._address, patience=STEADY)
    read_shards(patient, manifest, kit.specs(0, 1))
    assert fake_s3.stalls == 0
    fake_s3.stalls = 10_000
    with pytest.raises(StorageUnavailableError):
        read_shards(quick, manifest, kit.specs(0, 1))
    fake_s3.stalls = 0
    only_the_old_one_is_there(kit, store)


def test_bodies_that_are_cut_are_read_again(kit: Kit, store: S3Store, fake_s3: FakeS3) -> None:
    fake_s3.cuts = 5
    patient = S3Store(store._address, patience=STEADY)
    assert kit.same(kit.restore(patient, OLD, 2), kit.state(1))
    assert fake_s3.cuts == 0


def test_a_body_that_is_always_cut_is_no_damage(kit: Kit, store: S3Store, fake_s3: FakeS3) -> None:
    manifest = load_manifest(store, OLD)
    fake_s3.cuts = 10_000
    with pytest.raises(StorageUnavailableError, match="broke off"):
        read_shards(store, manifest, kit.specs(0, 1))
    fake_s3.cuts = 0
    only_the_old_one_is_there(kit, store)


def test_a_store_that_refuses_every_condition_is_refused_in_clear_words(
    kit: Kit, store: S3Store, fake_s3: FakeS3
) -> None:
    """Some gateways answer 412 to whatever has a condition, though nothing is there."""
    fake_s3.rule = lambda _method, _path, headers: (
        Refusal(412, "PreconditionFailed") if headers.get("If-None-Match") else None
    )
    with pytest.raises(StorageDeniedError, match="refuses to create an object where there is none"):
        probe_store(store)
    with pytest.raises(StorageError, match="refuses to create an object where there is none"):
        kit.save(store, kit.state(2), REF)
    fake_s3.rule = lambda *_: None
    only_the_old_one_is_there(kit, store)


def test_credentials_that_end_in_the_middle_of_a_save_are_renewed(
    kit: Kit, store: S3Store, fake_s3: FakeS3, fake_address: StoreAddress
) -> None:
    keys, seen = Path(fake_address.credentials_file or ""), 0

    def rule(method: str, _path: str, headers: Message) -> Refusal | None:
        nonlocal seen
        seen += method == "PUT"
        if seen < 3 or f"Credential=new{seen // 3}/" in headers["Authorization"]:
            return None
        keys.write_text(f'{{"access_key": "new{seen // 3}", "secret_key": "s"}}')
        return Refusal(400, "ExpiredToken")

    fake_s3.rule = rule
    kit.save(S3Store(store._address, patience=STEADY), kit.state(2), REF)
    fake_s3.rule = lambda *_: None
    assert verify(store, REF) == []


def test_credentials_that_stay_expired_cost_the_save(kit: Kit, store: S3Store, fake_s3: FakeS3) -> None:
    fake_s3.rule = lambda method, *_: Refusal(400, "ExpiredToken") if method == "PUT" else None
    with pytest.raises(StorageUnavailableError, match="credentials have expired") as caught:
        kit.save(store, kit.state(2), REF)
    assert "goes on with the new ones by itself" in caught.value.todo
    fake_s3.rule = lambda *_: None
    only_the_old_one_is_there(kit, store)


def test_five_thousand_objects_over_pages_are_all_seen(store: S3Store, fake_s3: FakeS3) -> None:
    fake_s3.objects |= {f"run/packs/{number:05d}": b"" for number in range(5000)}
    before = len(fake_s3.requests)
    assert sum(1 for _ in store.list("packs/")) >= 5000
    assert len(fake_s3.requests) - before >= 5


def test_a_page_that_fails_makes_no_short_list(store: S3Store, fake_s3: FakeS3) -> None:
    fake_s3.page = 1
    fake_s3.rule = lambda _method, path, _headers: Refusal(503, "SlowDown") if "continuation-token" in path else None
    for look in (lambda: list(store.list("packs/")), lambda: scan_commits(store)):
        if len([key for key in fake_s3.objects if "commits/" in key]) == 1:
            fake_s3.objects[f"run/{commit_key(REF)}"] = b"a second"
        with pytest.raises(StorageUnavailableError):
            look()


def test_a_store_that_takes_a_pack_and_loses_it_gets_no_commit(kit: Kit, store: S3Store, fake_s3: FakeS3) -> None:
    fake_s3.rule = lambda method, path, _headers: (
        Raw(200, b"", (("ETag", '"made-up"'),)) if method == "PUT" and "packs/" in path else None
    )
    with pytest.raises(CheckpointError, match="the pack is missing") as caught:
        kit.save(store, kit.state(2), REF)
    assert re.match("packs/", caught.value.objects[0])
    fake_s3.rule = lambda *_: None
    only_the_old_one_is_there(kit, store)


def test_a_pack_with_another_etag_than_when_it_was_put_is_not_built_on(
    kit: Kit, store: S3Store, fake_s3: FakeS3
) -> None:
    keyframes = kit.keyframes(store, kit.state(2), REF)
    assert [item.problem(store) for item in keyframes] == ["", ""]
    key = load_manifest(store, REF).packs[0].key
    fake_s3.objects[f"run/{key}"] = bytes(len(fake_s3.objects[f"run/{key}"]))
    assert keyframes[0].problem(store).startswith(f"{key} is not what was written")
