"""A rank builds only on a keyframe that is committed, whole on the store, and unchanged in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.differences import tiny_keyframe

from stormsail.platform.checkpoint.keys import commit_key, manifest_key
from stormsail.platform.checkpoint.manifest import RankPart
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import InternalError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

KEY = CheckpointRef(1, 100)
SHAPE = (7, 5)


def newer(spec: ShardSpec) -> Shard:
    return Shard(spec, np.ones(spec.count, np.float32))


def packs(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("packs/")]


def test_the_same_elements_are_found_with_their_digest(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    keyframe = kit.keyframes(store, state, KEY, 2)[1]
    found = keyframe.find(newer(ShardSpec("embed.weight", "master", SHAPE, 18, 17)))
    assert found is not None
    assert np.array_equal(found.words, state["embed.weight", "master"][18:].view(np.uint32))
    assert (keyframe.ref, keyframe.world_size, keyframe.stored_bytes > 0) == (KEY, 2, True)


@pytest.mark.parametrize(
    "spec",
    [
        ShardSpec("embed.weight", "master", SHAPE, 0, 18),
        ShardSpec("embed.weight", "master", SHAPE, 18, 10),
        ShardSpec("embed.weight", "exp_avg", SHAPE, 18, 17),
        ShardSpec("other", "master", SHAPE, 18, 17),
    ],
    ids=["another rank's", "another cut", "never as a difference", "unknown"],
)
def test_other_elements_are_not(kit: Kit, spec: ShardSpec) -> None:
    assert kit.keyframes(kit.store(), kit.state(0), KEY, 2)[1].find(newer(spec)) is None


def test_a_whole_keyframe_has_no_problem(kit: Kit) -> None:
    store = kit.store()
    assert [keyframe.problem(store) for keyframe in kit.keyframes(store, kit.state(0), KEY)] == ["", ""]


def test_one_that_was_never_committed_is_not_built_on(kit: Kit) -> None:
    store = kit.store()
    (keyframe,) = kit.keyframes(store, kit.state(0), KEY, 1)
    store.delete(commit_key(KEY))
    assert "no checkpoint of step 100" in keyframe.problem(store)


def test_a_lost_manifest_or_pack_and_a_cut_one_are_noticed(kit: Kit) -> None:
    store = kit.store()
    (keyframe,) = kit.keyframes(store, kit.state(0), KEY, 1)
    pack = packs(store)[-1]
    body = store.get(pack)
    store.put(pack, body[:-1])
    assert keyframe.problem(store).startswith(f"{pack} is not what was written")
    store.put(pack, bytes(len(body)))
    assert keyframe.problem(store).startswith(f"{pack} is not what was written")
    store.delete(pack)
    assert keyframe.problem(store) == f"{pack} is missing"
    store.delete(manifest_key(KEY))
    assert keyframe.problem(store) == f"{manifest_key(KEY)} is missing"


def test_a_copy_that_changed_in_memory_is_noticed(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    (keyframe,) = kit.keyframes(store, state, KEY, 1)
    state["norm", "master"].view(np.uint32)[0] ^= 1
    assert "norm/master" in keyframe.problem(store)


def test_a_store_that_fails_is_no_damage(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kit.store()
    (keyframe,) = kit.keyframes(store, kit.state(0), KEY, 1)

    def fail(key: str) -> None:
        raise StorageUnavailableError("503", where=key)

    monkeypatch.setattr(store, "head", fail)
    with pytest.raises(StorageUnavailableError):
        keyframe.problem(store)


def test_what_builds_on_another_is_no_keyframe(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, KEY, 1)
    part: RankPart = kit.parts(store, kit.drift(state, 1), CheckpointRef(1, 110), 1, bases=bases)[0]
    with pytest.raises(InternalError, match="builds on step 100"):
        tiny_keyframe(part, [])


def test_many_packs_are_looked_at_together(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    store, shapes = kit.store(), {f"layer{number}": (10, 10) for number in range(8)}
    (keyframe,) = kit.keyframes(store, kit.state(0, shapes), KEY, 1, shapes=shapes)
    assert len(packs(store)) >= 8
    ask, asking = store.head, set()

    def head(key: str) -> ObjectInfo:
        asking.add(threading.current_thread())
        return ask(key)

    monkeypatch.setattr(store, "head", head)
    assert keyframe.problem(store) == ""
    assert threading.current_thread() not in asking
