"""What N ranks wrote, M ranks read, with the same root: for parameters cut as ZeRO-3 cuts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.platform.checkpoint.conftest import COMPONENTS, State
from tests.support.differences import tiny_keyframe

from stormsail.platform.checkpoint.chain import Chain, choose, extend
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.reader import load_manifest, read_shards, verify
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

# A matrix that every world divides, ones with padded last shares, and some smaller than the world.
SHAPES: dict[str, tuple[int, ...]] = {
    "even": (6, 4),
    "odd": (7, 5),
    "bias": (3,),
    "one": (1,),
    "scalar": (),
    "two": (2,),
}
WORLDS = (1, 2, 3, 4)
FIRST, SECOND = CheckpointRef(1, 10), CheckpointRef(2, 10)
SCALARS = {"step": [10.0, 10.0], "lr": [1e-3, 1e-4]}


def zero_specs(rank: int, world_size: int) -> list[ShardSpec]:
    """As ZeRO-3 does it: equal shares, rounded up, the last ones padded; ranks may own nothing of a small tensor."""
    specs = []
    for name, shape in SHAPES.items():
        total = ShardSpec(name, "master", shape, 0, 0).size
        share = -(-total // world_size)
        start = min(rank * share, total)
        count = min(share, total - start)
        specs += [ShardSpec(name, component, shape, start, count) for component in COMPONENTS if count]
    return specs


def write(
    kit: Kit, store: MemoryStore, ref: CheckpointRef, held: list[list[Shard]], bases: list[Keyframe] | None = None
) -> list[Keyframe] | None:
    """A checkpoint of what each rank holds; gives what it can be built on."""
    parts = [
        write_part(
            store,
            generation=ref.generation,
            step=ref.step,
            rank=rank,
            world_size=len(held),
            shards=shards,
            cancelled=lambda: False,
            base=bases[rank] if bases else None,
        )
        for rank, shards in enumerate(held)
    ]
    meta = kit.meta(ref.step, len(held)).model_copy(update={"optimizer": SCALARS})
    commit(store, parts, meta, parent=None, time_s=1.0)
    return None if bases else [tiny_keyframe(part, shards) for part, shards in zip(parts, held, strict=True)]


def read(store: MemoryStore, ref: CheckpointRef, world_size: int) -> list[list[Shard]]:
    manifest = load_manifest(store, ref)
    held = [read_shards(store, manifest, zero_specs(rank, world_size), threads=1) for rank in range(world_size)]
    assert sum((Digest.of(shard) for shards in held for shard in shards), Digest()) == manifest.root_digest
    assert manifest.meta.optimizer == SCALARS
    return held


def cut_for(kit: Kit, state: State, world_size: int) -> list[list[Shard]]:
    return [kit.shards(state, zero_specs(rank, world_size)) for rank in range(world_size)]


@pytest.mark.parametrize("readers", WORLDS)
@pytest.mark.parametrize("writers", WORLDS)
def test_there_and_back_through_a_second_generation(kit: Kit, writers: int, readers: int) -> None:
    """N to M, saved again on M, and from that back to N: three checkpoints of one root, each whole."""
    store, state = kit.store(), kit.state(0, SHAPES)
    write(kit, store, FIRST, cut_for(kit, state, writers))
    held = read(store, FIRST, readers)
    write(kit, store, SECOND, held)
    write(kit, store, CheckpointRef(3, 10), read(store, SECOND, writers))
    roots = {load_manifest(store, CheckpointRef(generation, 10)).root for generation in (1, 2, 3)}
    assert len(roots) == 1
    assert all(verify(store, CheckpointRef(generation, 10)) == [] for generation in (1, 2, 3))
    assert kit.same(kit.restore(store, CheckpointRef(3, 10), 1, shapes=SHAPES), state)


@pytest.mark.parametrize(("writers", "readers"), [(2, 3), (3, 2), (4, 1), (1, 4)])
def test_differences_begin_anew_on_another_world(kit: Kit, writers: int, readers: int) -> None:
    """A difference is reshaped like any other state; the first save of the new world is a keyframe, and is built on."""
    store, state = kit.store(), kit.state(0, SHAPES)
    bases = write(kit, store, FIRST, cut_for(kit, state, writers))
    newer = kit.drift(state, 1)
    write(kit, store, CheckpointRef(1, 20), cut_for(kit, newer, writers), bases)
    assert load_manifest(store, CheckpointRef(1, 20)).base == FIRST
    held = read(store, CheckpointRef(1, 20), readers)
    old_chain = extend(
        Chain(), choose(Chain(), generation=1, world_size=writers), ref=FIRST, world_size=writers, stored_bytes=1
    )
    assert choose(old_chain, generation=2, world_size=readers).reason == (
        f"{readers} workers save now, {writers} wrote the last keyframe"
    )
    again = write(kit, store, CheckpointRef(2, 20), held)
    newest = kit.drift(newer, 2)
    write(kit, store, CheckpointRef(2, 30), cut_for(kit, newest, readers), again)
    assert load_manifest(store, CheckpointRef(2, 30)).base == CheckpointRef(2, 20)
    assert kit.same(kit.restore(store, CheckpointRef(2, 30), writers, shapes=SHAPES), newest)
    assert kit.same(kit.restore(store, CheckpointRef(2, 20), writers, shapes=SHAPES), newer)
