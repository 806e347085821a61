"""Verification names every damaged object of a checkpoint, and only those."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stormsail.platform.checkpoint.keys import FORMAT_KEY, commit_key, generation_key, manifest_key, owner_of, part_key
from stormsail.platform.checkpoint.reader import load_manifest, scan_commits, verify
from stormsail.platform.checkpoint.verify import record_problems
from stormsail.platform.errors import StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

OLD, REF = CheckpointRef(1, 5), CheckpointRef(1, 10)


@pytest.fixture
def store(kit: Kit) -> MemoryStore:
    store = kit.store()
    kit.save(store, kit.state(5), OLD)
    kit.save(store, kit.state(10), REF)
    return store


def packs(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("packs/") if owner_of(info.key) == REF]


def test_a_whole_checkpoint_has_no_problem(store: MemoryStore) -> None:
    assert verify(store, REF) == verify(store, REF, deep=False) == []
    assert all(verify(store, commit) == [] for commit in scan_commits(store).commits)


def test_every_flipped_bit_of_every_object_is_found_and_named(store: MemoryStore) -> None:
    """A few positions of each object in turn, first and last byte among them; each named as the one that is bad."""
    tried = 0
    for info in list(store.list()):
        if owner_of(info.key) != REF:
            continue
        body = store.get(info.key)
        for place in {0, len(body) - 1, *range(0, len(body), max(1, len(body) // 40))}:
            store.put(info.key, body[:place] + bytes([body[place] ^ (1 << (tried % 8))]) + body[place + 1 :])
            assert {problem.key for problem in verify(store, REF)} == {info.key}
            tried += 1
        store.put(info.key, body)
    assert tried > 250
    assert verify(store, REF) == []


def test_every_truncation_of_an_object_is_found_and_named(store: MemoryStore) -> None:
    for info in list(store.list()):
        if owner_of(info.key) != REF:
            continue
        body = store.get(info.key)
        for length in {0, 1, len(body) // 2, len(body) - 1}:
            store.put(info.key, body[:length])
            assert {problem.key for problem in verify(store, REF)} == {info.key}
        store.put(info.key, body)


def test_all_damaged_objects_are_named_at_once(store: MemoryStore) -> None:
    first, second, *_ = packs(store)
    store.delete(first)
    store.put(second, bytes(len(store.get(second))))
    store.delete(part_key(REF, 0))
    store.put(part_key(REF, 1), b"nothing")
    found = {(problem.key, problem.kind) for problem in verify(store, REF)}
    assert found == {
        (first, "missing"),
        (second, "damaged"),
        (part_key(REF, 0), "missing"),
        (part_key(REF, 1), "damaged"),
    }


def test_the_shallow_form_sees_sizes_and_names_only(store: MemoryStore) -> None:
    first, second, *_ = packs(store)
    store.put(first, bytes(len(store.get(first))))
    assert verify(store, REF, deep=False) == []
    store.put(second, store.get(second)[:-1])
    assert [problem.key for problem in verify(store, REF, deep=False)] == [second]


def test_a_part_of_another_checkpoint_is_found(store: MemoryStore) -> None:
    store.put(part_key(REF, 0), store.get(part_key(OLD, 0)))
    assert [problem.key for problem in verify(store, REF)] == [part_key(REF, 0)]


@pytest.mark.parametrize("key", [commit_key(REF), manifest_key(REF)])
def test_a_missing_record_is_called_missing(store: MemoryStore, key: str) -> None:
    store.delete(key)
    assert [(problem.key, problem.kind) for problem in verify(store, REF)] == [(key, "missing")]


def test_a_store_that_fails_is_no_damage(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(key: str) -> None:
        raise StorageUnavailableError("503", where=key)

    monkeypatch.setattr(store, "head", fail)
    with pytest.raises(StorageUnavailableError):
        verify(store, REF)


@pytest.fixture
def pair(kit: Kit) -> MemoryStore:
    """A keyframe and a difference to it."""
    store, state = kit.store(), kit.state(5)
    bases = kit.keyframes(store, state, OLD)
    kit.save(store, kit.drift(state, 1), REF, bases=bases)
    return store


def test_a_difference_verifies_with_its_keyframe(pair: MemoryStore) -> None:
    assert verify(pair, OLD) == verify(pair, REF) == verify(pair, REF, deep=False) == []


def test_damage_anywhere_in_a_keyframe_is_found_from_what_builds_on_it(pair: MemoryStore) -> None:
    """Except in what the difference does not need: first moments, and the ranks' parts."""
    manifest = load_manifest(pair, OLD)
    for frame in manifest.frames:
        key = manifest.packs[frame.pack].key
        body = pair.get(key)
        place = frame.offset + frame.length // 2
        pair.put(key, body[:place] + bytes([body[place] ^ 4]) + body[place + 1 :])
        found = verify(pair, REF)
        assert [problem.key for problem in found] == ([] if frame.component == "exp_avg" else [key])
        assert [problem.kind for problem in found] == ["damaged"] * len(found)
        pair.put(key, body)


@pytest.mark.parametrize("key", [commit_key(OLD), manifest_key(OLD)])
def test_a_lost_keyframe_is_called_missing(pair: MemoryStore, key: str) -> None:
    pair.delete(key)
    (problem,) = verify(pair, REF)
    assert (problem.key, problem.kind) == (key, "missing")
    assert "step 10 builds on step 5" in problem.detail


def test_a_lost_pack_of_a_keyframe_is_named_once(pair: MemoryStore) -> None:
    key = load_manifest(pair, OLD).packs[0].key
    pair.delete(key)
    assert [(problem.key, problem.kind) for problem in verify(pair, REF)] == [(key, "missing")]


def test_a_sound_part_in_the_place_of_another_ranks_is_named(store: MemoryStore) -> None:
    store.put(part_key(REF, 1), store.get(part_key(REF, 0)))
    (problem,) = verify(store, REF)
    assert problem.key == part_key(REF, 1)
    assert "rank 0" in problem.detail


def test_the_records_that_all_share_are_checked(kit: Kit, store: MemoryStore) -> None:
    kit.generation(store, 1)
    kit.generation(store, 2, 1, 5)
    assert record_problems(store) == []
    store.put(generation_key(2), store.get(generation_key(1)))
    store.put(FORMAT_KEY, store.get(FORMAT_KEY)[:-9])
    assert [(problem.key, problem.kind) for problem in record_problems(store)] == [
        (FORMAT_KEY, "damaged"),
        (generation_key(2), "damaged"),
    ]
    store.delete(FORMAT_KEY)
    assert record_problems(store)[0].kind == "missing"
