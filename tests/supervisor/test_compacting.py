"""Folding as a task: what comes of it is told, whatever it is. The Ray side is tried with a real run."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest
from tests.support.differences import tiny_keyframe
from tests.support.run_kit import checkpoint_meta, tiny_shards, written_part

from stormsail.platform.checkpoint.leases import Lease, ReadLease
from stormsail.platform.checkpoint.records import unseal
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import compacting
from stormsail.supervisor.compacting import FoldResult, RayCompactor, fold_held, fold_one

REF = CheckpointRef(1, 10)


def test_what_goes_wrong_is_told_and_not_raised(tmp_path: Path) -> None:
    found = fold_one(StoreAddress(f"file://{tmp_path}/run"), REF)
    assert "no checkpoint of step 10" in found.why


def test_a_keyframe_is_done_at_once(tmp_path: Path) -> None:
    address = StoreAddress(f"file://{tmp_path}/run")
    store = open_store(address)
    ensure_format(store)
    commit(store, [written_part(store, REF, 0)], checkpoint_meta(10), parent=None, time_s=1.0)
    assert fold_one(address, REF) == FoldResult(REF)


def test_the_lease_is_renewed_while_a_fold_goes_on_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, hours = MemoryStore(), itertools.count(0, 3600)
    ensure_format(store)
    part = written_part(store, REF, 0)
    commit(store, [part], checkpoint_meta(10), parent=None, time_s=1.0)
    later = CheckpointRef(1, 20)
    parts = [written_part(store, later, 0, base=tiny_keyframe(part, tiny_shards()))]
    commit(store, parts, checkpoint_meta(20), parent=None, time_s=1.0)
    monkeypatch.setattr(compacting, "ReadLease", partial(ReadLease, clock=lambda: float(next(hours))))
    renewals: list[int] = []

    def look() -> bool:
        renewals.extend(unseal(store.get(info.key), Lease, info.key).renewal for info in store.list("leases/"))
        return False

    assert fold_held(store, later, cancelled=look) is not None
    assert renewals == list(range(1, len(renewals) + 1)) != []
    assert list(store.list("leases/")) == []


def test_nothing_was_begun_and_nothing_comes_of_it(tmp_path: Path) -> None:
    compactor = RayCompactor(StoreAddress(f"file://{tmp_path}/run"))
    assert not compactor.busy
    assert compactor.poll() is None
