"""Loading a committed state into a living engine: verified first, and only then changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.one_rank import build, digest_of, meta_of, save, tiny_config, train

from stormsail.platform.checkpoint.manifest import Manifest, RankPart
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.errors import StateMismatchError, StorageError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault.slots import Slot
from stormsail.workers import restore as module
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import Observation, judge
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.restore import Nearby, Restored, restore
from stormsail.workers.snapshot import SnapshotWriter

pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.filterwarnings("ignore")]  # DeepSpeed's own

RULES = Policy().rules
REF = CheckpointRef(1, 3)


@pytest.fixture(scope="module")
def engine(one_rank: object) -> Iterator[ZeroEngine]:
    made = build(tiny_config())
    yield made
    made.destroy()


@pytest.fixture
def store() -> FragileStore:
    made = FragileStore()
    ensure_format(made)
    return made


def test_the_engine_goes_on_as_the_one_that_saved(engine: ZeroEngine, store: FragileStore) -> None:
    train(engine, range(3))
    manifest = save(engine, store, REF)
    losses = train(engine, range(3, 5))
    found = restore(engine, store, REF, rules=RULES, patience_s=0.0)
    assert isinstance(found, Restored)
    assert digest_of(engine.copy_state()) == manifest.root_digest
    assert train(engine, range(3, 5)) == losses
    assert (found.meta.step, found.meta.applied, found.detector) == (3, 3, DetectorState())


def test_the_detectors_come_back_with_the_state(engine: ZeroEngine, store: FragileStore) -> None:
    learned = DetectorState()
    for step in range(5):
        learned, _ = judge(learned, Observation(step, 5.0 - 0.1 * step, 1.0, 0, False, 32), Policy())
    assert learned != DetectorState()
    save(engine, store, REF, detector=learned.to_json())
    found = restore(engine, store, REF, rules=RULES, patience_s=0.0)
    assert isinstance(found, Restored)
    assert found.detector == learned


def test_a_whole_checkpoint_of_another_version_is_not_called_damaged(engine: ZeroEngine, store: FragileStore) -> None:
    save(engine, store, REF, detector={"nonsense": 1})
    before = digest_of(engine.copy_state())
    with pytest.raises(StateMismatchError, match=r"another version|cannot be read"):
        restore(engine, store, REF, rules=RULES, patience_s=0.0)
    assert digest_of(engine.copy_state()) == before


@pytest.mark.parametrize("damage", ["pack", "manifest", "commit"])
def test_what_is_damaged_is_told_and_changes_nothing(engine: ZeroEngine, store: FragileStore, damage: str) -> None:
    manifest = save(engine, store, REF)
    train(engine, range(1))
    before = digest_of(engine.copy_state())
    if damage == "pack":
        key = manifest.packs[0].key
        body = bytearray(store.get(key))
        body[len(body) // 2] ^= 1
        store.put(key, bytes(body))
    else:
        key = next(info.key for info in store.list(f"{damage}s/"))
        store.put(key, store.get(key)[:-3])
    found = restore(engine, store, REF, rules=RULES, patience_s=0.0)
    assert isinstance(found, str)
    assert found
    assert "\n" not in found
    assert digest_of(engine.copy_state()) == before


def test_one_that_is_not_there_is_told(engine: ZeroEngine, store: FragileStore) -> None:
    found = restore(engine, store, CheckpointRef(9, 9), rules=RULES, patience_s=0.0)
    assert isinstance(found, str)
    assert "there is no checkpoint of step 9" in found


def test_a_store_that_stays_away_is_no_fault_of_the_checkpoint(engine: ZeroEngine, store: FragileStore) -> None:
    save(engine, store, REF)
    before = digest_of(engine.copy_state())
    store.go_down()
    with pytest.raises(StorageError, match="Nobody answers"):
        restore(engine, store, REF, rules=RULES, patience_s=0.0)
    assert digest_of(engine.copy_state()) == before


def test_a_store_that_comes_back_in_time_is_waited_for(
    engine: ZeroEngine, store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    save(engine, store, REF)
    store.failures = 1
    assert isinstance(restore(engine, store, REF, rules=RULES, patience_s=20.0), Restored)


class Snapshots:
    """A writer of one rank whose slots are as many as the test wants, and what it commits."""

    def __init__(self, store: FragileStore) -> None:
        self.told: list[str] = []
        self.slots: list[Slot] = []
        self._store = store
        self._parts: list[RankPart] = []
        self._writer = SnapshotWriter(
            store,
            rank=0,
            world_size=1,
            deliver=lambda part, _meta, _took_s: self._parts.append(part),
            missed=lambda _generation, _step, why: self.told.append(why),
            deadline_s=30.0,
            acquire=self._acquire,
        )
        self.nearby = Nearby(self._writer.images, lambda image, error: self.told.append(f"{image.place}: {error.what}"))

    def _acquire(self, size_bytes: int) -> list[Slot]:
        self.slots = [Slot.private(size_bytes) for _ in range(2)]
        return self.slots

    def save(self, engine: ZeroEngine) -> Manifest:
        meta = meta_of(engine, REF)
        assert self._writer.take(engine, generation=REF.generation, step=REF.step, meta=meta)
        assert self._writer.wait(30.0)
        return commit(self._store, [self._parts.pop()], meta, parent=None, time_s=1.0)

    def close(self) -> None:
        self._writer.close(30.0)


@pytest.fixture
def snapshots(store: FragileStore) -> Iterator[Snapshots]:
    made = Snapshots(store)
    yield made
    made.close()


def test_a_state_that_is_still_in_memory_is_taken_from_there(
    engine: ZeroEngine, store: FragileStore, snapshots: Snapshots
) -> None:
    train(engine, range(3))
    manifest = snapshots.save(engine)
    losses = train(engine, range(3, 5))
    for pack in manifest.packs:
        store.delete(pack.key)  # the bytes are nowhere else
    found = restore(engine, store, REF, rules=RULES, patience_s=0.0, nearby=snapshots.nearby)
    assert isinstance(found, Restored)
    assert list(found.bytes_from) == ["memory"]
    assert digest_of(engine.copy_state()) == manifest.root_digest
    assert train(engine, range(3, 5)) == losses
    assert snapshots.told == []


def test_a_snapshot_that_nobody_committed_is_never_loaded(
    engine: ZeroEngine, store: FragileStore, snapshots: Snapshots
) -> None:
    snapshots.save(engine)
    commit_key = next(info.key for info in store.list("commits/"))
    store.delete(commit_key)
    assert isinstance(restore(engine, store, REF, rules=RULES, patience_s=0.0, nearby=snapshots.nearby), str)


def test_a_snapshot_that_has_changed_is_put_aside_and_the_store_is_used(
    engine: ZeroEngine, store: FragileStore, snapshots: Snapshots
) -> None:
    manifest = snapshots.save(engine)
    train(engine, range(1))
    for slot in snapshots.slots:
        slot.bytes[3] ^= 1
    found = restore(engine, store, REF, rules=RULES, patience_s=0.0, nearby=snapshots.nearby)
    assert isinstance(found, Restored)
    assert list(found.bytes_from) == ["store"]
    assert digest_of(engine.copy_state()) == manifest.root_digest
    assert [text.partition(": ")[0] for text in snapshots.told] == ["memory"]
    again = restore(engine, store, REF, rules=RULES, patience_s=0.0, nearby=snapshots.nearby)
    assert isinstance(again, Restored)
    assert len(snapshots.told) == 1
