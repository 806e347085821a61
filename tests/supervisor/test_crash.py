"""A whole run of saves, commits, retention and sweeps dies at any storage operation, and the next one goes on exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platform.checkpoint.conftest import CrashingStore
from tests.support.differences import always
from tests.support.first_sound import first_sound
from tests.support.run_kit import LIMIT_S, checkpoint_meta, small_config

from stormsail.platform.checkpoint.chain import ChainPolicy
from stormsail.platform.checkpoint.collector import collect, collect_litter
from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.keys import FORMAT_KEY, owner_of
from stormsail.platform.checkpoint.lines import Generation, create_generation, list_generations, live_refs, newest_first
from stormsail.platform.checkpoint.reader import load_manifest, read_shards
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import write_part
from stormsail.platform.errors import CheckpointError, StorageUnavailableError
from stormsail.platform.lease import KEY as LEASE
from stormsail.platform.lease import LeaseOwner, RunLease
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.committer import Committed, Committer
from stormsail.supervisor.keeping import Keeper, retention_plan
from stormsail.supervisor.ledger import Ledger
from stormsail.workers.deltas import Deltas

SIZE, RANKS = 900, 2
CONFIG = small_config(
    checkpoint={"every_steps": 10, "good_after_steps": 1, "keep_last": 1},
    rollback={"min_steps": 20},
    fp32={"window_steps": 20},
)
POLICY = ChainPolicy(max_deltas=2)
COMPONENTS = ("exp_avg", "exp_avg_sq", "master")


@dataclass
class Process:
    """Writers, committer and collector of one generation, in one process that dies with its store."""

    store: ObjectStore
    generation: int
    published: list[CheckpointRef] = field(default_factory=list)
    missed: list[CheckpointRef] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deltas = [
            Deltas(self.store, world_size=RANKS, policy=POLICY, noted=lambda *_: None, worth=always)
            for _ in range(RANKS)
        ]
        self.committer = Committer(
            self.store,
            deadline_s=LIMIT_S,
            on_commit=self._on_commit,
            on_missed=self._on_missed,
            parent_of=lambda _generation: None,
        )

    def _on_missed(self, generation: int, step: int, _why: str, /, *, finite: bool = True) -> None:
        assert finite
        self.missed.append(CheckpointRef(generation, step))

    def _on_commit(self, done: Committed) -> None:
        self.published.append(done.manifest.ref)

    def save(self, step: int) -> None:
        """All ranks write, and the committer publishes, or does not."""
        ref = CheckpointRef(self.generation, step)
        for rank, deltas in enumerate(self.deltas):
            scheduled = deltas.plan(ref)
            shards = shards_of(ref, rank)
            part = write_part(
                self.store,
                generation=ref.generation,
                step=ref.step,
                rank=rank,
                world_size=RANKS,
                shards=shards,
                cancelled=lambda: False,
                pack_bytes=4000,
                base=deltas.base_for(ref, scheduled),
            )
            deltas.wrote(part, shards, scheduled)
            self.committer.add(part, checkpoint_meta(step, RANKS) if rank == 0 else None, 0.0)
        assert self.committer.drain(LIMIT_S)
        if ref in self.missed:
            raise StorageUnavailableError("the process died here")

    def prune(self) -> None:
        commits = scan_commits(self.store).commits
        live = live_refs(list_generations(self.store), commits)
        collect(self.store, retention_plan(CONFIG, commits, good=live, live=live))

    def run(self, steps: range) -> None:
        """As a supervisor would: begin a generation, save, and delete after each commit."""
        for step in steps:
            self.save(step)
            self.prune()
        collect_litter(self.store, now_s=4e9, grace_s=1.0)


def shards_of(ref: CheckpointRef, rank: int) -> list[Shard]:
    """A rank's share of the state that `ref` names; the weights drift, the first moments are always new."""
    start = SIZE // RANKS * rank
    shards = []
    for number, component in enumerate(COMPONENTS):
        values = np.random.default_rng(number).normal(0, 1, SIZE)
        noise = np.random.default_rng([ref.generation, ref.step, number]).normal(0, 1, SIZE)
        values = noise if component == "exp_avg" else values * (1 + 1e-5 * noise)
        part = values.astype(np.float32)[start : start + SIZE // RANKS]
        shards.append(Shard(ShardSpec("w", component, (SIZE,), start, part.size), part))
    return shards


def is_exact(store: ObjectStore, ref: CheckpointRef) -> bool:
    """Whether one reader gets every bit of what two wrote."""
    specs = [ShardSpec("w", component, (SIZE,), 0, SIZE) for component in COMPONENTS]
    found = read_shards(store, load_manifest(store, ref), specs, threads=1)
    wanted = zip(*(shards_of(ref, rank) for rank in range(RANKS)), strict=True)
    return all(
        np.array_equal(shard.words, np.concatenate([piece.words for piece in pieces]))
        for shard, pieces in zip(found, wanted, strict=True)
    )


def newest(store: ObjectStore) -> CheckpointRef | None:
    commits = scan_commits(store).commits
    order = newest_first(live_refs(list_generations(store), commits))
    passed: list[CheckpointRef] = []
    found = first_sound(store, order, on_problem=lambda ref, _problems: passed.append(ref))
    assert passed == [], "what was committed is not whole"
    return found


def begin(store: ObjectStore, number: int, parent: CheckpointRef | None) -> None:
    made = Generation(
        number, parent.generation if parent else None, parent.step if parent else 0, "test", "test", float(number)
    )
    create_generation(store, made)


def die_and_go_on(limit: int, *, takes_effect: bool) -> bool:
    """One run dies at the operation `limit`, the next goes on from what it left. Gives whether the first one died."""
    store = MemoryStore()
    ensure_format(store)
    begin(store, 1, None)
    first = Process(CrashingStore(store, limit, takes_effect=takes_effect), 1)
    died = False
    try:
        first.run(range(10, 80, 10))
    except StorageUnavailableError:
        died = True
    first.committer.close()
    found = newest(store)
    last = first.published[-1] if first.published else None
    # The answer to the last commit may have been lost with the process: then it is there, and was never heard of.
    beyond = found is not None and (last is None or found.step == last.step + 10)
    assert found == last or (takes_effect and beyond), f"{found} is there, {last} was published"
    assert found is None or is_exact(store, found)
    begin(store, 2, found)
    second = Process(store, 2)
    step = found.step if found else 0
    second.run(range(step + 10, step + 30, 10))
    second.committer.close()
    assert newest(store) == CheckpointRef(2, step + 20)
    left = {item.ref for item in scan_commits(store).commits}
    assert {owner_of(info.key) for info in store.list()} - {None} == left, "litter is left"
    assert all(is_exact(store, ref) for ref in left)
    return died


@settings(max_examples=6)
@given(limit=st.integers(0, 62), takes_effect=st.booleans())
def test_a_run_that_dies_anywhere_goes_on_from_its_newest_commit(limit: int, takes_effect: bool) -> None:
    die_and_go_on(limit, takes_effect=takes_effect)


@pytest.mark.slow
@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_run_that_dies_at_each_operation_in_turn(takes_effect: bool) -> None:
    limit = 0
    while die_and_go_on(limit, takes_effect=takes_effect):
        limit += 1
    assert limit > 50


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_whichever_object_a_bit_is_turned_in_the_next_supervisor_starts_and_has_the_newest_whole_state(
    past: RunPlace, tmp_path: Path, place: float
) -> None:
    source = past.store()
    objects = {info.key: source.get(info.key) for info in source.list()}
    RunLease.acquire(source, LeaseOwner.here("before"), now=1.0)
    objects[LEASE] = source.get(LEASE)
    newest = max(commit.step for commit in scan_commits(source).commits)
    kinds = {key.split("/")[0] for key in objects}
    assert {"commits", "manifests", "packs", "parts", "generations", "journal", "series", FORMAT_KEY, LEASE} <= kinds
    for number, key in enumerate(objects):
        store = MemoryStore()
        for other, body in objects.items():
            changed = bytearray(body)
            changed[int(len(body) * place)] ^= 1 if other == key else 0
            store.put(other, bytes(changed))
        RunLease.acquire(store, LeaseOwner.here("after"), now=2.0, take_over=True, is_alive=lambda _pid: False)
        ledger = Ledger(store, tmp_path / str(number), writer="after", deadline_s=LIMIT_S)
        ensure_format(store)
        keeper = Keeper(small_config(), ledger, store)
        keeper.adopt()
        keeper.sweep(1e10)
        assert ledger.candidates()[-1].ref.step == newest, key
        restored = next(ref.step for ref in reversed([c.ref for c in ledger.candidates()]) if is_readable(store, ref))
        needed = owner_of(key)
        spoilt = needed is not None and needed.step == newest and not key.startswith("parts/")
        assert (restored == newest) is not spoilt, key


def is_readable(store: ObjectStore, ref: CheckpointRef) -> bool:
    """Whether a restore takes the whole of a checkpoint."""
    try:
        manifest = load_manifest(store, ref)
        read_shards(
            store,
            manifest,
            [
                ShardSpec(tensor.name, component, tensor.shape, 0, math.prod(tensor.shape))
                for tensor in manifest.tensors
                for component in tensor.components
            ],
        )
    except CheckpointError:
        return False
    return True
