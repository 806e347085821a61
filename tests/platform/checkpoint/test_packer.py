"""Packs are closed when full, put once, and given up when told so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.keys import pack_key
from stormsail.platform.checkpoint.packer import Packer, SaveAbandonedError, put_once
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import CheckpointError, FencedError, InternalError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

REF = CheckpointRef(1, 10)


def test_a_pack_is_put_as_soon_as_it_is_full(kit: Kit) -> None:
    store = MemoryStore()
    packer = Packer(store, REF, 0, 300, lambda: False)
    for shard in kit.shards(kit.state(0), kit.specs(0, 1)):
        packer.add(shard)
        assert len(list(store.list("packs/"))) == len(packer.packs)
    packer.close()
    assert len(packer.packs) > 3
    assert all(store.head(pack.key).size_bytes == pack.size_bytes for pack in packer.packs)
    assert sum(pack.size_bytes for pack in packer.packs) == sum(frame.length for frame in packer.frames)


def test_nothing_to_write_puts_no_pack_but_knows_the_tensors() -> None:
    packer = Packer(MemoryStore(), REF, 0, 300, lambda: False)
    packer.add(Shard(ShardSpec("w", "master", (4,), 4, 0), np.zeros(0, np.float32)))
    packer.close()
    assert (packer.packs, packer.frames, packer.digest) == ([], [], Digest())
    assert [(tensor.name, tensor.shape, tensor.components) for tensor in packer.tensors] == [("w", (4,), ("master",))]


def test_one_tensor_has_one_shape() -> None:
    packer = Packer(MemoryStore(), REF, 0, 300, lambda: False)
    packer.add(Shard(ShardSpec("w", "master", (4,), 0, 4), np.zeros(4, np.float32)))
    with pytest.raises(InternalError, match="two shapes"):
        packer.add(Shard(ShardSpec("w", "exp_avg", (2, 2), 0, 4), np.zeros(4, np.float32)))


def test_nonfinite_values_are_counted() -> None:
    packer = Packer(MemoryStore(), REF, 0, 300, lambda: False)
    packer.add(Shard(ShardSpec("w", "master", (3,), 0, 3), np.array([1, np.nan, np.inf], np.float32)))
    assert packer.nonfinite == 2


def test_a_save_that_is_given_up_puts_nothing_more(kit: Kit) -> None:
    store = MemoryStore()
    given_up = False
    packer = Packer(store, REF, 0, 300, lambda: given_up)
    shards = kit.shards(kit.state(0), kit.specs(0, 1))
    for shard in shards[:-1]:
        packer.add(shard)
    given_up = True
    before = list(store.list())
    with pytest.raises(SaveAbandonedError, match="given up") as caught:
        packer.add(shards[-1])
    with pytest.raises(SaveAbandonedError):
        packer.close()
    assert isinstance(caught.value, CheckpointError)
    assert list(store.list()) == before


def test_the_same_bytes_again_are_fine_and_others_are_fenced() -> None:
    store = MemoryStore()
    key = pack_key(REF, 0, 0)
    first = put_once(store, key, b"one")
    assert put_once(store, key, bytearray(b"one")).etag == first.etag
    with pytest.raises(FencedError):
        put_once(store, key, b"two")
    assert store.get(key) == b"one"


def test_differences_are_counted_where_the_keyframe_has_the_same_elements(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    (base,) = kit.keyframes(store, state, CheckpointRef(1, 5), 1)
    packer = Packer(store, REF, 0, 300, lambda: False, base=base)
    for shard in kit.shards(kit.drift(state, 1), kit.specs(0, 1)):
        packer.add(shard)
    packer.close()
    assert packer.differences == sum(frame.base is not None for frame in packer.frames) == 8
    assert {frame.component for frame in packer.frames if frame.base is None} == {"exp_avg"}
