"""What stays for long is folded, and its keyframe goes once nobody can need it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.jumping_clock import jumping
from tests.support.run_kit import KEEP_LITTLE, LIMIT_S, Staff, small_config, tiny_shards

from stormsail.platform.checkpoint import folding as fold_module
from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.folding import fold
from stormsail.platform.checkpoint.keys import fold_key, manifest_key
from stormsail.platform.checkpoint.leases import ReadLease
from stormsail.platform.checkpoint.pins import pin, unpin
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.compacting import FoldResult, fold_held


class Here:
    """Folds at once, in the caller's thread."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.done: FoldResult | None = None
        self.begun: list[CheckpointRef] = []
        self.why = ""

    @property
    def busy(self) -> bool:
        return self.done is not None

    def start(self, ref: CheckpointRef) -> None:
        self.begun.append(ref)
        if not self.why:
            fold(self.store, ref, time_s=1.0)
        self.done = FoldResult(ref, why=self.why)

    def poll(self) -> FoldResult | None:
        done, self.done = self.done, None
        return done


@pytest.fixture
def compactor() -> Here:
    return Here(FragileStore())


@pytest.fixture
def folding(tmp_path: Path, compactor: Here) -> Iterator[Staff]:
    """A supervisor that folds, with a keyframe at 1, a pinned difference to it at 2, and another keyframe at 3."""
    made = Staff(compactor.store, tmp_path, small_config(checkpoint=KEEP_LITTLE), compactor=compactor)
    made.begin()
    base = made.keyframe(1)
    made.checkpoint(2, good=True, base=base)
    pin(made.store, CheckpointRef(1, 2), owner="me", time_s=1.0)
    assert compactor.begun == []
    made.keyframe(3)
    yield made
    made.close()


def test_what_is_kept_for_long_is_folded_and_its_keyframe_goes(
    folding: Staff, compactor: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = jumping(folding.keeper, monkeypatch)
    assert compactor.begun == [CheckpointRef(1, 2)]
    for step in range(4, 25):
        folding.checkpoint(step, good=True)
    assert compactor.begun == [CheckpointRef(1, 2)]
    assert folding.journal.count("checkpoint.folded") == 1
    assert 1 in folding.steps_on_store
    assert CheckpointRef(1, 1) not in folding.ledger.record.deleted
    assert verify(folding.store, CheckpointRef(1, 2)) == []
    manifests = {info.key for info in folding.store.list("manifests/")}
    assert manifest_key(CheckpointRef(1, 2)) in manifests
    now_s[0] += 3 * LIMIT_S
    folding.checkpoint(25, good=True)
    assert manifest_key(CheckpointRef(1, 2)) not in {info.key for info in folding.store.list("manifests/")}
    assert 1 in folding.steps_on_store
    folding.checkpoint(26, good=True)
    assert 1 not in folding.steps_on_store
    assert verify(folding.store, CheckpointRef(1, 2)) == []


def test_a_damaged_fold_frees_no_keyframe_and_holds_up_nothing_else(
    folding: Staff, compactor: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = jumping(folding.keeper, monkeypatch)
    damaged = bytearray(folding.store.get(fold_key(CheckpointRef(1, 2))))
    damaged[-20] ^= 1
    folding.store.put(fold_key(CheckpointRef(1, 2)), bytes(damaged))
    folding.checkpoint(5, good=True, base=folding.keyframe(4))
    pin(folding.store, CheckpointRef(1, 5), owner="me", time_s=1.0)
    for step in range(6, 25):
        folding.checkpoint(step, good=True)
    assert compactor.begun == [CheckpointRef(1, 2), CheckpointRef(1, 5)]
    now_s[0] += 3 * LIMIT_S
    for step in (25, 26, 27):
        folding.checkpoint(step, good=True)
    assert {1, 2} <= set(folding.steps_on_store)
    read_shards(folding.store, load_manifest(folding.store, CheckpointRef(1, 2)), [tiny_shards(seed=2)[0].spec])
    assert manifest_key(CheckpointRef(1, 5)) not in {info.key for info in folding.store.list("manifests/")}
    assert folding.journal.count("checkpoint.fold_damaged") == 1
    assert "checkpoint.retention_failed" not in folding.journal


def test_who_reads_what_was_folded_holds_its_keyframe_too(folding: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the lease comes after the plan: the differences may be what is read."""
    jumping(folding.keeper, monkeypatch)
    unpin(folding.store, CheckpointRef(1, 2))
    leases, secure = contextlib.ExitStack(), folding.ledger.secure

    def leased_meanwhile() -> None:
        secure()
        if CheckpointRef(1, 1) in folding.ledger.record.deleted:
            leases.enter_context(ReadLease(folding.store, [CheckpointRef(1, 2)]))

    monkeypatch.setattr(folding.ledger, "secure", leased_meanwhile)
    for step in range(4, 25):
        folding.checkpoint(step, good=True)
    assert CheckpointRef(1, 1) in folding.ledger.record.deleted
    assert {1, 2} <= set(folding.steps_on_store)
    leases.close()


def test_the_sweep_leaves_alone_what_a_fold_is_writing(folding: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take an hour, while packs count as old after two deadlines of a save."""
    ref = folding.checkpoint(5, good=True, base=folding.keyframe(4))
    read_back = fold_module._read_back

    def swept_then(*args: Any) -> None:
        read_back(*args)
        folding.keeper.sweep(4e9)

    monkeypatch.setattr(fold_module, "_read_back", swept_then)
    assert fold_held(folding.store, ref) is not None
    assert verify(folding.store, ref) == []
    assert list(folding.store.list("leases/")) == []


def test_what_could_not_be_folded_is_noted_and_not_tried_again(tmp_path: Path, compactor: Here) -> None:
    compactor.why = "its process died"
    made = Staff(compactor.store, tmp_path, small_config(checkpoint=KEEP_LITTLE), compactor=compactor)
    made.begin()
    made.checkpoint(2, good=True, base=made.keyframe(1))
    pin(made.store, CheckpointRef(1, 2), owner="me", time_s=1.0)
    for step in (3, 4, 5, 6):
        made.keyframe(step)
    assert compactor.begun == [CheckpointRef(1, 2)]
    assert made.journal.count("checkpoint.fold_failed") == 1
    assert 1 in made.steps_on_store
    made.close()
