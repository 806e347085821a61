"""Deleting is safe at every moment: what is committed can be restored, whatever dies in between."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from stormsail.platform.checkpoint.collector import collect, collect_litter
from stormsail.platform.checkpoint.keys import commit_key, manifest_key, owner_of
from stormsail.platform.checkpoint.reader import scan_commits, verify
from stormsail.platform.checkpoint.retention import Keep, RetentionPlan, retain
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.errors import CheckpointError, InternalError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

REFS = [CheckpointRef(1, step) for step in (10, 20, 30)]
PLAN = RetentionPlan(keep=(REFS[2],), delete=(REFS[0], REFS[1]))


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(kit: Kit, clock: Clock) -> MemoryStore:
    store = MemoryStore(clock=clock)
    for ref in REFS:
        kit.save(store, kit.state(ref.step), ref)
    return store


def owners(store: ObjectStore) -> set[CheckpointRef]:
    return {owner for owner in (owner_of(info.key) for info in store.list()) if owner is not None}


def test_a_deleted_checkpoint_leaves_nothing_and_the_others_stay_whole(store: MemoryStore) -> None:
    packs = sum(info.size_bytes for info in store.list("packs/") if owner_of(info.key) in PLAN.delete)
    done = collect(store, PLAN)
    assert owners(store) == {REFS[2]}
    assert verify(store, REFS[2]) == []
    assert (done.freed_bytes, done.problems) == (packs, ())


def test_the_commit_goes_first_then_manifest_parts_and_packs(store: MemoryStore) -> None:
    kinds = [key.split("/")[0] for key in collect(store, RetentionPlan((), (REFS[0],))).deleted]
    assert kinds == sorted(kinds, key=["commits", "manifests", "parts", "packs"].index)
    assert set(kinds) == {"commits", "manifests", "parts", "packs"}


@pytest.mark.parametrize("takes_effect", [False, True])
def test_dying_at_any_moment_leaves_whole_checkpoints_only(kit: Kit, clock: Clock, takes_effect: bool) -> None:
    total = None
    limit = 0
    while total is None or limit < total:
        store = MemoryStore(clock=clock)
        for ref in REFS:
            kit.save(store, kit.state(ref.step), ref)
        with contextlib.suppress(StorageUnavailableError):
            total = len(collect(kit.crashing(store, limit, takes_effect=takes_effect), PLAN).deleted)
        left = [commit.ref for commit in scan_commits(store).commits]
        assert REFS[2] in left
        assert all(verify(store, ref) == [] for ref in left)
        assert kit.same(kit.restore(store, REFS[2]), kit.state(30))
        clock.now_s += 100.0
        collect(store, RetentionPlan(keep=(REFS[2],), delete=tuple(ref for ref in left if ref != REFS[2])))
        collect_litter(store, now_s=clock.now_s, grace_s=50.0)
        assert owners(store) == {REFS[2]}
        limit += 1
    assert limit > 15


def test_a_plan_that_contradicts_itself_deletes_nothing(store: MemoryStore) -> None:
    before = list(store.list())
    with pytest.raises(InternalError):
        collect(store, RetentionPlan(keep=(REFS[0],), delete=(REFS[0],)))
    assert list(store.list()) == before


def test_a_checkpoint_with_a_damaged_manifest_is_no_longer_offered_and_its_packs_wait(
    store: MemoryStore, clock: Clock
) -> None:
    key = manifest_key(REFS[0])
    store.put(key, b"damaged")
    done = collect(store, RetentionPlan(tuple(REFS[1:]), (REFS[0],)))
    assert [problem.key for problem in done.problems] == [commit_key(REFS[0])]
    assert [commit.ref for commit in scan_commits(store).commits] == REFS[1:]
    clock.now_s += 100.0
    collect_litter(store, now_s=clock.now_s, grace_s=50.0)
    assert owners(store) == set(REFS[1:])


def test_litter_of_a_dead_save_goes_after_the_grace(kit: Kit, store: MemoryStore, clock: Clock) -> None:
    dead = CheckpointRef(1, 40)
    kit.parts(store, kit.state(40), dead, 2)
    assert collect_litter(store, now_s=clock.now_s + 10, grace_s=50.0).deleted == ()
    done = collect_litter(store, now_s=clock.now_s + 51, grace_s=50.0)
    assert done.freed_bytes > 0
    assert owners(store) == set(REFS)
    assert all(verify(store, ref) == [] for ref in REFS)


def test_a_save_that_goes_on_is_spared_as_a_whole(kit: Kit, store: MemoryStore, clock: Clock) -> None:
    slow, young = CheckpointRef(1, 40), CheckpointRef(1, 50)
    kit.parts(store, kit.state(40), slow, 1)
    clock.now_s += 100.0
    kit.parts(store, kit.state(50), young, 1)
    before = list(store.list())
    assert collect_litter(store, now_s=clock.now_s, grace_s=50.0, spare=[slow]).deleted == ()
    assert list(store.list()) == before


def test_an_unreadable_commit_protects_its_checkpoint(store: MemoryStore, clock: Clock) -> None:
    store.put(commit_key(REFS[0]), b"damaged")
    before = list(store.list())
    assert collect_litter(store, now_s=clock.now_s + 1000, grace_s=50.0).deleted == ()
    assert list(store.list()) == before
    assert len(scan_commits(store).problems) == 1


def test_foreign_objects_are_left_alone(store: MemoryStore, clock: Clock) -> None:
    for key in ("packs/notes.txt", "parts/x", "journal/00000001"):
        store.put(key, b"mine")
    collect(store, PLAN)
    collect_litter(store, now_s=clock.now_s + 1000, grace_s=0.0)
    assert all(store.get(key) == b"mine" for key in ("packs/notes.txt", "parts/x", "journal/00000001"))


def test_a_save_that_is_committed_after_the_sweep_began_is_refused_or_whole(
    kit: Kit, store: MemoryStore, clock: Clock
) -> None:
    """A sweeper dies half-way, and the world that it took for dead comes to its commit after all."""
    late = CheckpointRef(1, 40)
    refused = 0
    for limit in range(12):
        parts = kit.parts(store, kit.state(40), late, 2)
        with contextlib.suppress(StorageUnavailableError):
            collect_litter(kit.crashing(store, limit), now_s=clock.now_s + 100, grace_s=50.0)
        try:
            commit(store, parts, kit.meta(40, 2), parent=None, time_s=1.0)
        except CheckpointError:
            refused += 1
        else:
            assert verify(store, late) == []
            store.delete(commit_key(late))
    assert refused >= 10


@pytest.mark.parametrize("takes_effect", [False, True])
def test_dying_at_any_moment_leaves_no_difference_without_its_keyframe(
    kit: Kit, clock: Clock, takes_effect: bool
) -> None:
    refs = [CheckpointRef(1, step) for step in (10, 20, 30, 40)]
    state = kit.state(0)
    limit = 0
    total = None
    while total is None or limit < total:
        store = MemoryStore(clock=clock)
        bases = kit.keyframes(store, state, refs[0])
        for ref in refs[1:3]:
            kit.save(store, kit.drift(state, ref.step), ref, bases=bases)
        kit.save(store, kit.state(40), refs[3])
        commits = scan_commits(store).commits
        chain = {commit.ref: commit.base for commit in commits if commit.base is not None}
        plan = retain(commits, good=refs[3:], live=refs, head_step=200, rules=Keep(1), bases=chain)
        assert plan.delete == (refs[1], refs[2], refs[0])
        with contextlib.suppress(StorageUnavailableError):
            total = len(collect(kit.crashing(store, limit, takes_effect=takes_effect), plan).deleted)
        left = [commit.ref for commit in scan_commits(store).commits]
        assert all(verify(store, ref) == [] for ref in left)
        limit += 1
    assert limit > 15
