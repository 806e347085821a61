"""A checkpoint exists only when it is whole and committed, whatever dies on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stormsail.platform.checkpoint.commits import load_commit
from stormsail.platform.checkpoint.keys import commit_key, manifest_key, part_key
from stormsail.platform.checkpoint.lines import list_generations, live_refs, newest_first
from stormsail.platform.checkpoint.reader import load_manifest, scan_commits, verify
from stormsail.platform.checkpoint.shards import ShardSpec
from stormsail.platform.checkpoint.writer import SaveAbandonedError, commit, write_part
from stormsail.platform.errors import CheckpointError, FencedError, InternalError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

OLD, NEW = CheckpointRef(1, 10), CheckpointRef(1, 20)


def snapshot(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


def save_until_death(kit: Kit, store: ObjectStore, ref: CheckpointRef) -> bool:
    try:
        kit.save(store, kit.state(ref.step), ref)
    except StorageUnavailableError:
        return False
    return True


@pytest.mark.parametrize("takes_effect", [False, True])
def test_dying_at_any_operation_leaves_the_newest_committed_state_exactly(kit: Kit, takes_effect: bool) -> None:
    limit = 0
    finished = False
    while not finished:
        store = kit.store()
        kit.save(store, kit.state(OLD.step), OLD)
        finished = save_until_death(kit, kit.crashing(store, limit, takes_effect=takes_effect), NEW)
        refs = [entry.ref for entry in scan_commits(store).commits]
        assert refs in ([OLD], [OLD, NEW])
        assert refs == [OLD, NEW] or not finished
        assert kit.same(kit.restore(store, refs[-1]), kit.state(refs[-1].step))
        assert all(verify(store, ref) == [] for ref in refs)
        limit += 1
    assert limit > 8


def test_a_later_attempt_never_mixes_with_one_that_died(kit: Kit) -> None:
    """Rank 0 wrote its part and rank 1 died; the next attempt saves the same step with another state."""
    limit = 0
    finished = False
    while not finished:
        store = kit.store()
        kit.generation(store, 1)
        finished = save_until_death(kit, kit.crashing(store, limit), NEW)
        kit.generation(store, 2)
        again = CheckpointRef(2, NEW.step)
        before = snapshot(store)
        kit.save(store, kit.state(99), again)
        assert all(store.get(key) == body for key, body in before.items())
        live = newest_first(live_refs(list_generations(store), scan_commits(store).commits))
        assert live == [again]
        assert kit.same(kit.restore(store, again), kit.state(99))
        limit += 1


def test_a_step_can_be_committed_again_after_a_rollback_and_the_old_one_is_never_live(kit: Kit) -> None:
    store = kit.store()
    kit.generation(store, 1)
    for step in (400, 410, 500):
        kit.save(store, kit.state(step), CheckpointRef(1, step))
    kit.generation(store, 2, parent=1, fork_step=400)
    for step in (410, 420):
        kit.save(store, kit.state(1000 + step), CheckpointRef(2, step))
    live = newest_first(live_refs(list_generations(store), scan_commits(store).commits))
    assert live == [CheckpointRef(2, 420), CheckpointRef(2, 410), CheckpointRef(1, 400)]
    assert kit.same(kit.restore(store, CheckpointRef(1, 500)), kit.state(500))


def test_the_order_is_packs_part_manifest_commit(kit: Kit) -> None:
    written: list[str] = []

    class Recording(MemoryStore):
        def put(
            self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
        ) -> ObjectInfo:
            written.append(key)
            return super().put(key, data, if_none_match=if_none_match, if_match=if_match)

    kit.save(Recording(), kit.state(0), NEW, world_size=1)
    assert [key.split("/")[0] for key in written][-3:] == ["parts", "manifests", "commits"]
    assert {key.split("/")[0] for key in written[:-3]} == {"packs"}


def test_repeating_a_commit_finds_it_done(kit: Kit) -> None:
    store = kit.store()
    parts = kit.parts(store, kit.state(0), NEW, 2)
    first = commit(store, parts, kit.meta(20, 2), parent=OLD, time_s=1.0)
    before = snapshot(store)
    assert commit(store, parts, kit.meta(20, 2), parent=OLD, time_s=2.0) == first
    assert snapshot(store) == before


def test_what_the_state_lost_in_its_evaluation_stands_in_the_commit(kit: Kit) -> None:
    store = kit.store()
    meta = kit.meta(20, 1).model_copy(update={"eval_loss": 1.5, "eval_set": "0" * 16})
    commit(store, kit.parts(store, kit.state(0), NEW, 1), meta, parent=None, time_s=1.0)
    found = load_commit(store, NEW)
    assert (found.eval_loss, found.eval_set) == (1.5, "0" * 16)


def test_repeating_a_part_finds_it_done(kit: Kit) -> None:
    store = kit.store()
    assert kit.parts(store, kit.state(0), NEW, 2) == kit.parts(store, kit.state(0), NEW, 2)


def test_a_commit_after_one_that_died_before_the_commit_object_goes_through(kit: Kit) -> None:
    store = kit.store()
    parts = kit.parts(store, kit.state(0), NEW, 2)
    commit(store, parts, kit.meta(20, 2), parent=None, time_s=1.0)
    store.delete(commit_key(NEW))
    commit(store, parts, kit.meta(20, 2), parent=None, time_s=2.0)
    assert load_manifest(store, NEW).ref == NEW


def test_another_state_under_the_same_name_is_fenced(kit: Kit) -> None:
    store, other = kit.store(), kit.store()
    kit.save(store, kit.state(0), NEW)
    with pytest.raises(FencedError, match="other bytes"):
        kit.save(store, kit.state(1), NEW)
    for key in (manifest_key(NEW), commit_key(NEW)):
        parts = kit.parts(other, kit.state(1), NEW, 2)
        for stale in (manifest_key(NEW), commit_key(NEW)):
            other.delete(stale)
        other.put(key, store.get(key))
        with pytest.raises(FencedError, match="another state"):
            commit(other, parts, kit.meta(20, 2), parent=None, time_s=1.0)


def test_a_pack_that_is_gone_or_cut_is_not_committed(kit: Kit) -> None:
    for change in ("gone", "cut"):
        store = kit.store()
        parts = kit.parts(store, kit.state(0), NEW, 2)
        key = parts[1].packs[0].key
        if change == "gone":
            store.delete(key)
        else:
            store.put(key, store.get(key)[:-1])
        with pytest.raises(CheckpointError) as caught:
            commit(store, parts, kit.meta(20, 2), parent=None, time_s=1.0)
        assert caught.value.objects == (key,)
        assert list(scan_commits(store).commits) == []


def test_a_save_that_is_given_up_has_no_part(kit: Kit) -> None:
    store = kit.store()
    with pytest.raises(SaveAbandonedError):
        write_part(
            store,
            generation=1,
            step=20,
            rank=0,
            world_size=1,
            shards=kit.shards(kit.state(0), kit.specs(0, 1)),
            cancelled=lambda: bool(list(store.list("packs/"))),
            pack_bytes=300,
        )
    assert not list(store.list("parts/"))


def test_shards_may_be_made_one_at_a_time(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    made = (shard for shard in kit.shards(state, kit.specs(0, 1)))
    part = write_part(
        store, generation=1, step=20, rank=0, world_size=1, shards=made, cancelled=lambda: False, pack_bytes=300
    )
    commit(store, [part], kit.meta(20, 1), parent=None, time_s=1.0)
    assert kit.same(kit.restore(store, NEW, 3), state)


def test_a_state_with_nan_is_kept_but_says_so(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    state["embed.weight", "exp_avg"][3] = np.nan
    manifest = kit.save(store, state, NEW)
    (entry,) = scan_commits(store).commits
    assert (manifest.nonfinite, entry.nonfinite, entry.finite) == (1, 1, False)
    assert kit.same(kit.restore(store, NEW), state)


def test_metadata_that_json_cannot_keep_writes_nothing(kit: Kit) -> None:
    store = kit.store()
    parts = kit.parts(store, kit.state(0), NEW, 1)
    meta = kit.meta(20, 1).model_copy(update={"detector": {"mean": float("nan")}})
    with pytest.raises(InternalError, match="JSON"):
        commit(store, parts, meta, parent=None, time_s=1.0)
    assert not list(store.list("manifests/"))


def test_an_empty_rank_and_an_empty_tensor_are_fine(kit: Kit) -> None:
    shapes = {"nothing": (0, 4), "tiny": (1,)}
    store, state = kit.store(), kit.state(0, shapes)
    kit.save(store, state, NEW, world_size=3, shapes=shapes)
    assert kit.same(kit.restore(store, NEW, 2, shapes=shapes), state)
    assert verify(store, NEW) == []
    assert store.get(part_key(NEW, 2))
    assert ShardSpec("nothing", "master", (0, 4), 0, 0).size == 0


def test_dying_at_any_operation_of_a_difference_leaves_the_newest_committed_state(kit: Kit) -> None:
    limit = 0
    finished = False
    while not finished:
        store, state = kit.store(), kit.state(0)
        bases = kit.keyframes(store, state, OLD)
        newer = kit.drift(state, 1)
        try:
            kit.save(kit.crashing(store, limit, takes_effect=limit % 2 == 0), newer, NEW, bases=bases)
            finished = True
        except StorageUnavailableError:
            pass
        refs = [entry.ref for entry in scan_commits(store).commits]
        assert refs in ([OLD], [OLD, NEW])
        assert kit.same(kit.restore(store, refs[-1], 3), newer if refs[-1] == NEW else state)
        assert all(verify(store, ref) == [] for ref in refs)
        limit += 1
    assert limit > 8


@pytest.mark.parametrize("what", ["commit", "manifest", "pack"])
def test_a_difference_to_a_keyframe_that_is_gone_is_not_committed(kit: Kit, what: str) -> None:
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, OLD)
    pack = load_manifest(store, OLD).packs[0].key
    store.delete({"commit": commit_key(OLD), "manifest": manifest_key(OLD), "pack": pack}[what])
    with pytest.raises(CheckpointError):
        kit.save(store, kit.drift(state, 1), NEW, bases=bases)
    assert commit_key(NEW) not in {info.key for info in store.list()}


def test_where_nothing_is_worth_a_difference_the_save_is_whole(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, OLD, 2)
    manifest = kit.save(store, kit.drift(state, 1), NEW, bases=bases[::-1])
    assert manifest.base is None
    assert kit.same(kit.restore(store, NEW), kit.drift(state, 1))
