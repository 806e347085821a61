"""Commits are listed by what is in them, errors are errors, and one bad commit does not hide the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from stormsail.platform.checkpoint.commits import load_commit, load_manifest, scan_commits
from stormsail.platform.checkpoint.keys import commit_key, manifest_key
from stormsail.platform.checkpoint.records import seal
from stormsail.platform.errors import CheckpointError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit


class Unlistable(MemoryStore):
    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        raise StorageUnavailableError("503 SlowDown", where=prefix)


@pytest.fixture
def store(kit: Kit) -> MemoryStore:
    store = kit.store()
    for ref in (CheckpointRef(2, 900), CheckpointRef(1, 1000), CheckpointRef(1, 900), CheckpointRef(3, 1100)):
        kit.save(store, kit.state(ref.step), ref)
    return store


def test_they_come_in_the_order_of_their_steps(store: MemoryStore) -> None:
    refs = [commit.ref for commit in scan_commits(store).commits]
    assert refs == [CheckpointRef(1, 900), CheckpointRef(2, 900), CheckpointRef(1, 1000), CheckpointRef(3, 1100)]


def test_they_say_what_lists_need(kit: Kit) -> None:
    store = kit.store()
    manifest = kit.save(store, kit.state(0), CheckpointRef(1, 10), parent=CheckpointRef(1, 5))
    (commit,) = scan_commits(store).commits
    assert (commit.root, commit.stored_bytes, commit.parent) == (manifest.root, manifest.stored_bytes, manifest.parent)
    assert (commit.applied, commit.tokens, commit.world_size, commit.time_s) == (10, 20480, 2, 1010.0)


def test_a_store_that_cannot_list_is_not_an_empty_one() -> None:
    with pytest.raises(StorageUnavailableError):
        scan_commits(Unlistable())


def test_an_empty_store_has_none(kit: Kit) -> None:
    assert list(scan_commits(kit.store()).commits) == []


def test_a_damaged_commit_is_named_and_hides_no_other(store: MemoryStore) -> None:
    key = commit_key(CheckpointRef(3, 1100))
    store.put(key, store.get(key).replace(b"1100", b"1200"))
    scan = scan_commits(store)
    assert len(scan.commits) == 3
    assert [(problem.key, problem.kind) for problem in scan.problems] == [(key, "damaged")]
    assert key in str(scan.problems[0])


def test_a_commit_under_another_name_is_refused(store: MemoryStore) -> None:
    wrong = commit_key(CheckpointRef(3, 1200))
    store.put(wrong, store.get(commit_key(CheckpointRef(3, 1100))))
    with pytest.raises(CheckpointError, match="says that it is step 1100"):
        load_commit(store, CheckpointRef(3, 1200))
    assert [problem.key for problem in scan_commits(store).problems] == [wrong]


def test_a_checkpoint_that_does_not_exist_is_named(store: MemoryStore) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of step 5 from generation 9"):
        load_manifest(store, CheckpointRef(9, 5))


def test_a_manifest_is_held_against_its_commit(store: MemoryStore) -> None:
    ref, other = CheckpointRef(3, 1100), CheckpointRef(1, 1000)
    body = store.get(manifest_key(ref))
    assert load_manifest(store, ref).ref == load_manifest(store, load_commit(store, ref)).ref == ref
    store.put(manifest_key(ref), store.get(manifest_key(other)))
    with pytest.raises(CheckpointError, match="SHA-256"):
        load_manifest(store, ref)
    store.put(manifest_key(ref), body[:-1])
    with pytest.raises(CheckpointError, match="SHA-256"):
        load_manifest(store, ref)
    store.delete(manifest_key(ref))
    with pytest.raises(CheckpointError, match="missing"):
        load_manifest(store, ref)


def test_a_commit_says_what_it_builds_on_as_its_manifest_does(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, CheckpointRef(1, 100))
    ref = CheckpointRef(1, 110)
    kit.save(store, kit.drift(state, 1), ref, bases=bases)
    record = load_commit(store, ref)
    assert (record.base, load_manifest(store, ref).base) == (CheckpointRef(1, 100), CheckpointRef(1, 100))
    assert load_commit(store, CheckpointRef(1, 100)).base is None
    store.put(commit_key(ref), seal(record.model_copy(update={"base": None})))
    with pytest.raises(CheckpointError, match="not the one of its commit"):
        load_manifest(store, ref)
