"""A folded checkpoint is the same state without its keyframe, and dying while it is folded harms nothing."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from stormsail.platform.checkpoint import folding
from stormsail.platform.checkpoint.collector import collect, collect_litter
from stormsail.platform.checkpoint.commits import load_commit, load_manifest
from stormsail.platform.checkpoint.folding import drop_original, fold, folded, freed
from stormsail.platform.checkpoint.keys import (
    fold_key,
    fold_manifest_key,
    is_fold_pack,
    manifest_key,
    owner_of,
    pack_rank,
)
from stormsail.platform.checkpoint.packer import SaveAbandonedError
from stormsail.platform.checkpoint.retention import RetentionPlan
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.errors import CheckpointError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit, State

BASE, REF = CheckpointRef(1, 100), CheckpointRef(1, 110)


@pytest.fixture
def state(kit: Kit) -> State:
    return kit.drift(kit.state(0), 1)


@pytest.fixture
def store(kit: Kit, state: State) -> MemoryStore:
    """A keyframe, and a difference to it."""
    made = kit.store()
    bases = kit.keyframes(made, kit.state(0), BASE)
    kit.save(made, state, REF, bases=bases)
    return made


def remove(store: MemoryStore, ref: CheckpointRef) -> None:
    collect(store, RetentionPlan((), (ref,)))


def test_it_is_the_same_state_and_needs_its_keyframe_no_more(kit: Kit, store: MemoryStore, state: State) -> None:
    root = load_manifest(store, REF).root
    manifest = fold(store, REF, time_s=1.0)
    assert manifest is not None
    assert (manifest.root, manifest.base) == (root, None)
    remove(store, BASE)
    assert drop_original(store, load_commit(store, REF)) > 0
    assert load_manifest(store, REF) == manifest
    assert kit.same(kit.restore(store, REF, 3), state)
    assert verify(store, REF) == []
    left = {info.key for info in store.list() if owner_of(info.key) == REF}
    assert not any(pack_rank(key) is not None for key in left)
    assert manifest_key(REF) not in left


def test_folding_again_and_folding_a_keyframe_change_nothing(store: MemoryStore) -> None:
    first = fold(store, REF, time_s=1.0)
    before = {info.key: info.etag for info in store.list()}
    assert fold(store, REF, time_s=2.0) == first
    assert fold(store, BASE, time_s=2.0) is None
    assert {info.key: info.etag for info in store.list()} == before
    assert folded(store) == {REF}


@pytest.mark.parametrize("takes_effect", [False, True])
def test_dying_at_any_operation_leaves_a_checkpoint_that_reads(
    kit: Kit, state: State, store: MemoryStore, *, takes_effect: bool
) -> None:
    clean = {info.key for info in store.list()}
    limit, finished = 0, False
    while not finished:
        crashing = kit.crashing(store, limit, takes_effect=takes_effect)
        with contextlib.suppress(StorageUnavailableError):
            fold(crashing, REF, time_s=1.0, pack_bytes=400)
            finished = True
        assert kit.same(kit.restore(store, REF), state)
        assert verify(store, REF) == []
        if REF not in folded(store):
            collect_litter(store, now_s=4e9, grace_s=10.0)
            assert {info.key for info in store.list()} == clean
        limit += 1
    assert limit > 4


def test_dying_while_the_differences_go_leaves_a_checkpoint_that_reads(
    kit: Kit, state: State, store: MemoryStore
) -> None:
    fold(store, REF, time_s=1.0)
    record = load_commit(store, REF)
    limit, finished = 0, False
    while not finished:
        with contextlib.suppress(StorageUnavailableError):
            drop_original(kit.crashing(store, limit), record)
            finished = True
        assert kit.same(kit.restore(store, REF), state)
        assert verify(store, REF) == []
        limit += 1
    assert limit > 4


def test_what_lies_around_after_the_differences_went_is_swept(kit: Kit, state: State, store: MemoryStore) -> None:
    fold(store, REF, time_s=1.0)
    store.delete(manifest_key(REF))
    collect_litter(store, now_s=4e9, grace_s=10.0)
    assert not any(pack_rank(info.key) is not None and owner_of(info.key) == REF for info in store.list())
    assert kit.same(kit.restore(store, REF), state)


@pytest.mark.parametrize("key", [fold_key(REF), fold_manifest_key(REF)])
def test_a_damaged_fold_is_named_and_the_differences_are_read_instead(
    kit: Kit, state: State, store: MemoryStore, key: str
) -> None:
    fold(store, REF, time_s=1.0)
    store.put(key, store.get(key)[:-3] + b"abc")
    assert [problem.key for problem in verify(store, REF)] == [key]
    assert kit.same(kit.restore(store, REF), state)
    store.delete(manifest_key(REF))
    with pytest.raises(CheckpointError) as caught:
        load_manifest(store, REF)
    assert caught.value.objects == (key,)


def test_a_damaged_pack_of_a_fold_is_no_loss_while_the_differences_are_there(
    kit: Kit, store: MemoryStore, state: State
) -> None:
    manifest = fold(store, REF, time_s=1.0)
    assert manifest is not None
    key = manifest.packs[0].key
    whole = store.get(key)
    store.put(key, whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    assert kit.same(kit.restore(store, REF, 3), state)
    store.delete(manifest_key(REF))
    with pytest.raises(CheckpointError) as caught:
        kit.restore(store, REF)
    assert caught.value.objects == (key,)


def test_a_keyframe_is_free_only_when_the_differences_are_gone(store: MemoryStore) -> None:
    fold(store, REF, time_s=1.0)
    assert freed(store, folded(store)) == frozenset()
    drop_original(store, load_commit(store, REF))
    assert freed(store, folded(store)) == {REF}


def test_a_fold_whose_packs_were_swept_is_not_published(
    kit: Kit, store: MemoryStore, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease keeps a run from sweeping it, but a lease may run out."""
    read_back = folding._read_back

    def swept_then(*args: Any) -> None:
        read_back(*args)
        assert collect_litter(store, now_s=4e9, grace_s=10.0).deleted

    monkeypatch.setattr(folding, "_read_back", swept_then)
    with pytest.raises(CheckpointError, match="pack of the fold is missing"):
        fold(store, REF, time_s=1.0)
    assert folded(store) == frozenset()
    assert kit.same(kit.restore(store, REF), state)


def test_reading_back_can_be_called_off(store: MemoryStore) -> None:
    asked = itertools.count()

    def once_written() -> bool:  # writing asks a last time when its packs are there
        return any(is_fold_pack(info.key) for info in store.list("packs/")) and next(asked) > 0

    with pytest.raises(SaveAbandonedError, match="folding was given up"):
        fold(store, REF, time_s=1.0, cancelled=once_written)
    assert folded(store) == frozenset()


def test_every_changed_byte_of_a_fold_is_found(store: MemoryStore) -> None:
    manifest = fold(store, REF, time_s=1.0)
    assert manifest is not None
    for pack in manifest.packs:
        whole = store.get(pack.key)
        for position in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[position] ^= 1
            store.put(pack.key, bytes(damaged))
            assert {problem.key for problem in verify(store, REF)} == {pack.key}
        store.put(pack.key, whole)


def test_the_differences_stay_while_the_fold_is_not_whole(store: MemoryStore) -> None:
    manifest = fold(store, REF, time_s=1.0)
    assert manifest is not None
    store.delete(manifest.packs[0].key)
    with pytest.raises(CheckpointError, match="pack of the fold is missing"):
        drop_original(store, load_commit(store, REF))
    assert manifest_key(REF) in {info.key for info in store.list()}


def test_a_folded_checkpoint_is_deleted_whole(store: MemoryStore) -> None:
    fold(store, REF, time_s=1.0)
    remove(store, REF)
    assert {owner_of(info.key) for info in store.list()} == {None, BASE}


def test_a_damaged_checkpoint_is_not_folded(store: MemoryStore) -> None:
    pack = load_manifest(store, BASE).packs[0].key
    store.put(pack, bytes(len(store.get(pack))))
    with pytest.raises(CheckpointError, match="builds on step 100"):
        fold(store, REF, time_s=1.0)
    assert folded(store) == frozenset()


def test_folding_can_be_called_off(store: MemoryStore) -> None:
    with pytest.raises(SaveAbandonedError):
        fold(store, REF, time_s=1.0, cancelled=lambda: True)
