"""Ranks agree on what is a keyframe without asking, and each writes in full what it cannot build on."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from tests.support.first_sound import first_sound
from tests.support.run_kit import checkpoint_meta, small_config

from stormsail.platform.checkpoint.chain import ChainPolicy
from stormsail.platform.checkpoint.keys import commit_key
from stormsail.platform.checkpoint.manifest import Manifest
from stormsail.platform.checkpoint.reader import load_manifest, read_shards
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.workers.deltas import Deltas, deltas_for

SIZE = 5000


class Rank:
    """The only rank of a run that saves again and again."""

    def __init__(self, policy: ChainPolicy) -> None:
        self.store = MemoryStore()
        ensure_format(self.store)
        self.noted: list[tuple[int, int, str]] = []
        self.deltas = Deltas(self.store, world_size=1, policy=policy, noted=lambda *what: self.noted.append(what))
        self.random = np.random.default_rng(0)
        self.values = self.random.normal(0, 1, SIZE).astype(np.float32)

    def save(self, step: int, *, generation: int = 1, scale: float = 1e-4, published: bool = True) -> Manifest | None:
        self.values = (self.values * (1 + self.random.normal(0, scale, SIZE))).astype(np.float32)
        ref = CheckpointRef(generation, step)
        shards = [Shard(ShardSpec("w", "master", (SIZE,), 0, SIZE), self.values)]
        scheduled = self.deltas.plan(ref)
        base = self.deltas.base_for(ref, scheduled)
        part = write_part(
            self.store,
            generation=generation,
            step=step,
            rank=0,
            world_size=1,
            shards=shards,
            cancelled=lambda: False,
            base=base,
        )
        self.deltas.wrote(part, shards, scheduled)
        if not published:
            return None
        made = commit(self.store, [part], checkpoint_meta(step), parent=None, time_s=1.0)
        (found,) = read_shards(self.store, load_manifest(self.store, ref), [shards[0].spec])
        assert np.array_equal(found.words, shards[0].words)
        return made


def bases(rank: Rank, steps: range, **more: float) -> list[int | None]:
    made = [rank.save(step, **more) for step in steps]  # type: ignore[arg-type] # only the scale is given
    return [item.base.step if item is not None and item.base is not None else None for item in made]


@pytest.fixture
def rank() -> Rank:
    return Rank(ChainPolicy(max_deltas=2))


def test_so_many_differences_lie_on_a_keyframe_and_then_comes_the_next(rank: Rank) -> None:
    assert bases(rank, range(10, 80, 10)) == [None, 10, 10, None, 40, 40, None]
    assert rank.noted == []


def test_a_new_generation_begins_with_a_keyframe(rank: Rank) -> None:
    bases(rank, range(10, 30, 10))
    made = rank.save(30, generation=2)
    assert made is not None
    assert made.base is None


def test_the_plan_is_the_same_for_a_rank_that_left_a_save_out() -> None:
    one, other = (Rank(ChainPolicy(max_deltas=2)) for _ in range(2))
    refs = [CheckpointRef(1, step) for step in range(10, 90, 10)]
    plans = [one.deltas.plan(ref) for ref in refs]
    assert [other.deltas.plan(ref) for ref in refs for _ in range(2)][::2] == plans


def test_a_keyframe_that_was_never_committed_is_not_built_on_and_that_is_told_once(rank: Rank) -> None:
    rank.save(10, published=False)
    assert bases(rank, range(20, 50, 10)) == [None, None, None]
    assert [(step, why.split(":")[0]) for _, step, why in rank.noted] == [
        (20, "the keyframe of step 10 cannot be built on")
    ]
    assert bases(rank, range(50, 60, 10)) == [40]


def test_a_keyframe_that_is_gone_is_not_built_on(rank: Rank) -> None:
    rank.save(10)
    rank.store.delete(commit_key(CheckpointRef(1, 10)))
    assert bases(rank, range(20, 30, 10)) == [None]


def test_a_keyframe_that_was_cut_is_not_built_on_any_more_and_is_named_by_what_was() -> None:
    """Case 5: a keyframe at 90, differences to 120, the keyframe cut, a save at 130; then a resume."""
    rank = Rank(ChainPolicy(max_deltas=9))
    rank.save(90)
    assert bases(rank, range(100, 130, 10)) == [90, 90, 90]
    key = load_manifest(rank.store, CheckpointRef(1, 90)).packs[0].key
    rank.store.put(key, rank.store.get(key)[:-1024])
    assert bases(rank, range(130, 140, 10)) == [None]
    ((_, step, why),) = rank.noted
    assert (step, key in why) == (130, True)
    problems: dict[int, str] = {}
    order = [CheckpointRef(1, step) for step in (120, 90, 130)]
    found = first_sound(rank.store, order, on_problem=lambda ref, found: problems.update({ref.step: str(found[0])}))
    assert found == CheckpointRef(1, 130)
    assert problems.keys() == {120, 90}
    assert all(key in text for text in problems.values())


def test_memory_holds_one_keyframe_at_a_time(rank: Rank) -> None:
    bases(rank, range(10, 40, 10))
    last = weakref.ref(rank.deltas.base_for(CheckpointRef(1, 30), CheckpointRef(1, 10)))
    assert last() is not None
    ref = CheckpointRef(1, 40)
    assert rank.deltas.plan(ref) == ref
    rank.deltas.base_for(ref, ref)
    assert last() is None


def test_after_a_keyframe_that_failed_saves_are_whole_until_the_next_one(rank: Rank) -> None:
    bases(rank, range(10, 40, 10))
    ref = CheckpointRef(1, 40)
    rank.deltas.base_for(ref, rank.deltas.plan(ref))  # and then the store failed
    assert bases(rank, range(50, 90, 10)) == [None, None, None, 70]
    assert rank.noted == [(1, 50, "this rank did not write the keyframe of step 40")]


def test_a_rank_that_did_not_write_the_keyframe_writes_in_full(rank: Rank) -> None:
    rank.deltas.plan(CheckpointRef(1, 10))
    assert bases(rank, range(20, 30, 10)) == [None]
    assert rank.noted == [(1, 20, "this rank did not write the keyframe of step 10")]


def test_a_difference_that_was_not_worth_it_is_the_last_one_and_no_trouble() -> None:
    rank = Rank(ChainPolicy(max_deltas=5, max_ratio=0.5))
    rank.save(10)
    assert bases(rank, range(20, 50, 10), scale=1e-3) == [10, None, None]
    assert rank.noted == []


def test_where_no_frame_is_worth_a_difference_the_save_is_whole_and_no_trouble() -> None:
    rank = Rank(ChainPolicy(max_deltas=5))
    rank.save(10)
    assert bases(rank, range(20, 50, 10), scale=2.0) == [None, None, None]
    assert rank.noted == []


def test_a_run_that_does_not_ask_for_it_has_none() -> None:
    store = MemoryStore()
    assert deltas_for(small_config(checkpoint={"deltas": False}), store, 1, lambda *_: None) is None
    assert deltas_for(small_config(), store, 1, lambda *_: None) is not None


def test_where_the_gradient_log_is_the_increment_every_save_is_whole_unless_it_is_rounded() -> None:
    store, logged = MemoryStore(), {"deltas": True, "gradient_log": "store"}
    assert deltas_for(small_config(checkpoint=logged), store, 1, lambda *_: None) is None
    assert deltas_for(small_config(checkpoint={**logged, "rounding": True}), store, 1, lambda *_: None) is not None
