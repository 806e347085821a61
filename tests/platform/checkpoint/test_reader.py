"""Any world reads what any other wrote, bit for bit, and only what it asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.keys import owner_of
from stormsail.platform.checkpoint.reader import load_manifest, read_shards, verify
from stormsail.platform.checkpoint.shards import ShardSpec
from stormsail.platform.errors import CheckpointError, StateMismatchError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

OLDER, REF = CheckpointRef(1, 5), CheckpointRef(1, 10)
FRACTIONS = st.floats(0.0, 1.0, allow_nan=False)


class Counting(MemoryStore):
    """Counts the bytes that are read from packs."""

    read_bytes = 0
    requests = 0

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        body = super().get(key, start=start, end=end)
        if key.startswith("packs/"):
            self.read_bytes += len(body)
            self.requests += 1
        return body


def cuts_for(world_size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(FRACTIONS, min_size=world_size - 1, max_size=world_size - 1).map(sorted)


@given(st.data())
@settings(max_examples=40)
def test_any_partition_reads_what_any_other_wrote(kit: Kit, data: st.DataObject) -> None:
    writers, readers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    shapes = data.draw(
        st.dictionaries(
            st.sampled_from(["a", "b.weight", "c"]), st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1
        )
    )
    store, state = kit.store(), kit.state(data.draw(st.integers(0, 9)), shapes)
    written = data.draw(cuts_for(writers)) if writers > 1 else []
    kit.save(store, state, REF, writers, shapes=shapes, cuts=written)
    read = data.draw(cuts_for(readers)) if readers > 1 else []
    assert kit.same(kit.restore(store, REF, readers, shapes=shapes, cuts=read), state)


def test_a_folder_serves_as_well(kit: Kit, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    kit.save(store, kit.state(0), REF, 3)
    assert kit.same(kit.restore(store, REF, 2), kit.state(0))
    pack = next(info.key for info in store.list("packs/"))
    store.put(pack, store.get(pack)[:5])
    with pytest.raises(CheckpointError, match="bytes, expected") as caught:
        kit.restore(store, REF, 2)
    assert caught.value.objects == (pack,)


def test_tensors_of_many_chunks_are_read_across_the_grid(kit: Kit) -> None:
    shapes = {"big": (CHUNK_ELEMENTS + 11,)}
    store, state = kit.store(), kit.state(0, shapes)
    manifest = kit.save(store, state, REF, 2, shapes=shapes, cuts=[0.4])
    assert [(frame.start, frame.count) for frame in manifest.frames[:3]] == [
        (0, round(0.4 * (CHUNK_ELEMENTS + 11))),
        (round(0.4 * (CHUNK_ELEMENTS + 11)), CHUNK_ELEMENTS - round(0.4 * (CHUNK_ELEMENTS + 11))),
        (CHUNK_ELEMENTS, 11),
    ]
    assert kit.same(kit.restore(store, REF, 3, shapes=shapes), state)


def test_a_second_generation_on_another_world_has_the_same_root(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    first = kit.save(store, state, REF, 4)
    second = kit.save(store, kit.restore(store, REF, 2), CheckpointRef(2, 10), 2)
    third = kit.save(store, kit.restore(store, CheckpointRef(2, 10), 3), CheckpointRef(3, 10), 3)
    assert first.root == second.root == third.root
    assert kit.same(kit.restore(store, CheckpointRef(3, 10), 1), state)


def test_signed_zeros_nan_payloads_and_subnormals_come_back(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    bits = np.array([0x8000_0000, 0x7FC0_1234, 0xFFFF_FFFF, 1, 0x8000_0001, 0x7F80_0000], np.uint32)
    state["embed.weight", "master"][:6] = bits.view(np.float32)
    kit.save(store, state, REF, 3)
    assert kit.same(kit.restore(store, REF, 2), state)


def test_only_what_overlaps_is_read_and_each_frame_once(kit: Kit) -> None:
    store = Counting()
    shapes = {f"layer.{number}": (500, 100) for number in range(8)}
    state = kit.state(0, shapes)
    manifest = kit.save(store, state, REF, 1, shapes=shapes)
    spec = ShardSpec("layer.3", "exp_avg", (500, 100), 100, 10)
    shards = read_shards(store, manifest, [spec, spec])
    frame = next(
        frame
        for frame in manifest.frames
        if (manifest.tensors[frame.tensor].name, frame.component) == ("layer.3", "exp_avg")
    )
    assert (store.read_bytes, store.requests) == (frame.length, 1)
    assert all(np.array_equal(shard.values, state["layer.3", "exp_avg"][100:110]) for shard in shards)


def test_asking_for_nothing_reads_nothing(kit: Kit) -> None:
    store = Counting()
    manifest = kit.save(store, kit.state(0), REF)
    assert read_shards(store, manifest, []) == []
    (empty,) = read_shards(store, manifest, [ShardSpec("norm", "master", (), 1, 0)])
    assert (empty.values.size, store.requests) == (0, 0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ShardSpec("other", "master", (4,), 0, 4), "no other/master"),
        (ShardSpec("norm", "velocity", (), 0, 1), "no norm/velocity"),
        (ShardSpec("embed.weight", "master", (5, 7), 0, 1), r"shape \[7, 5\] there, and \[5, 7\] here"),
    ],
)
def test_another_model_is_told_apart(kit: Kit, spec: ShardSpec, message: str) -> None:
    store = kit.store()
    manifest = kit.save(store, kit.state(0), REF)
    with pytest.raises(StateMismatchError, match=message):
        read_shards(store, manifest, [spec])


def test_a_store_that_fails_while_reading_is_no_damage(kit: Kit) -> None:
    class Failing(MemoryStore):
        def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            if key.startswith("packs/"):
                raise StorageUnavailableError("503 SlowDown", where=key)
            return super().get(key, start=start, end=end)

    store = Failing()
    kit.save(store, kit.state(0), REF)
    with pytest.raises(StorageUnavailableError):
        read_shards(store, load_manifest(store, REF), kit.specs(0, 1))


class Noisy(MemoryStore):
    """Turns one bit of what is read, at a chosen read, and not of what lies there."""

    flip_at = -1

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        body = super().get(key, start=start, end=end)
        self.flip_at -= 1
        return bytes([body[0] ^ 1]) + body[1:] if self.flip_at == 0 else body


def test_a_bit_that_turns_on_its_way_is_no_damage(kit: Kit) -> None:
    """At each read in turn: of commits, manifests and packs, of the difference and of its keyframe."""
    store, state = Noisy(), kit.state(0)
    bases = kit.keyframes(store, state, OLDER)
    newer = kit.drift(state, 1)
    kit.save(store, newer, REF, bases=bases)
    turned = 0
    for place in range(1, 40):
        store.flip_at = place
        assert kit.same(kit.restore(store, REF, 1), newer)
        turned += store.flip_at < 0
        store.flip_at = place
        assert verify(store, REF) == []
    assert turned > 5


@pytest.fixture(scope="module")
def chain(kit: Kit) -> dict[str, bytes]:
    """All objects of a run with two checkpoints."""
    store = kit.store()
    kit.save(store, kit.state(5), OLDER)
    kit.save(store, kit.state(10), REF)
    return {info.key: store.get(info.key) for info in store.list()}


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300)
def test_damage_anywhere_is_an_error_or_changes_nothing(kit: Kit, chain: dict[str, bytes], data: st.DataObject) -> None:
    """Flips, cuts, swaps and losses of any object: never a wrong state, and the object is named."""
    store = MemoryStore()
    for name, content in chain.items():
        store.put(name, content)
    key = data.draw(st.sampled_from(sorted(chain)))
    damage(store, key, data)
    for ref in (OLDER, REF):
        try:
            restored = kit.restore(store, ref, 1)
        except CheckpointError as error:
            assert (owner_of(key), error.objects) == (ref, (key,))  # noqa: PT017 - no error is a right answer too
        else:
            assert kit.same(restored, kit.state(ref.step))


def damage(store: MemoryStore, key: str, data: st.DataObject) -> None:
    """Harm one object in one of five ways."""
    body = store.get(key)
    kind = data.draw(st.sampled_from(["flip", "cut", "swap", "lose", "grow"]))
    if kind == "lose":
        store.delete(key)
    elif kind == "flip":
        place = data.draw(st.integers(0, len(body) - 1))
        store.put(key, body[:place] + bytes([body[place] ^ (1 << data.draw(st.integers(0, 7)))]) + body[place + 1 :])
    elif kind == "cut":
        store.put(key, body[: data.draw(st.integers(0, len(body) - 1))])
    elif kind == "swap":
        store.put(key, store.get(data.draw(st.sampled_from([info.key for info in store.list()]))))
    else:
        store.put(key, body + data.draw(st.binary(min_size=1, max_size=9)))


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
@pytest.mark.parametrize("writers", [1, 2, 3])
def test_a_difference_is_read_by_any_world(kit: Kit, writers: int, readers: int) -> None:
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, OLDER, writers)
    newer = kit.drift(state, 1)
    kit.save(store, newer, REF, writers, bases=bases)
    assert kit.same(kit.restore(store, REF, readers), newer)
    assert kit.same(kit.restore(store, OLDER, readers), state)


def test_a_difference_has_the_root_of_the_whole_state(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, OLDER, 3)
    newer = kit.drift(state, 1)
    made = kit.save(store, newer, REF, 3, bases=bases)
    again = kit.save(store, kit.restore(store, REF, 2), CheckpointRef(2, 10), 2)
    assert made.root == again.root
    assert again.base is None


def test_a_keyframe_is_not_asked_for_what_does_not_build_on_it(kit: Kit) -> None:
    store = Counting()
    state = kit.state(0)
    bases = kit.keyframes(store, state, OLDER)
    manifest = kit.save(store, kit.drift(state, 1), REF, bases=bases)
    read_shards(store, manifest, [ShardSpec("norm", "exp_avg", (), 0, 1)], threads=1)
    assert store.requests == 1
    read_shards(store, manifest, [ShardSpec("norm", "master", (), 0, 1)], threads=1)
    assert store.requests == 3


@pytest.fixture(scope="module")
def short_chain(kit: Kit) -> dict[str, bytes]:
    """All objects of a run with a keyframe and two differences to it."""
    store, state = kit.store(), kit.state(5)
    bases = kit.keyframes(store, state, OLDER)
    for step in (10, 15):
        kit.save(store, kit.drift(state, step), CheckpointRef(1, step), bases=bases)
    return {info.key: store.get(info.key) for info in store.list()}


@pytest.mark.slow
@given(st.data())
@settings(max_examples=100)
def test_damage_anywhere_in_a_chain_is_an_error_or_changes_nothing(
    kit: Kit, short_chain: dict[str, bytes], data: st.DataObject
) -> None:
    """The same for a chain: damage in the keyframe may stop all three, damage in a difference only itself."""
    store = MemoryStore()
    for name, content in short_chain.items():
        store.put(name, content)
    key = data.draw(st.sampled_from(sorted(short_chain)))
    damage(store, key, data)
    for step in (5, 10, 15):
        ref = CheckpointRef(1, step)
        try:
            restored = kit.restore(store, ref, 1)
        except CheckpointError as error:
            assert owner_of(key) in (ref, OLDER)
            assert error.objects == (key,)  # noqa: PT017
        else:
            assert kit.same(restored, kit.state(5) if step == 5 else kit.drift(kit.state(5), step))
