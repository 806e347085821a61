"""Folding as a task: what comes of it is told, whatever it is. The Ray side is tried with a real run."""

from __future__ import annotations

from pathlib import Path

from tests.support.run_kit import checkpoint_meta, written_part

from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.compacting import FoldResult, RayCompactor, fold_one

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


def test_nothing_was_begun_and_nothing_comes_of_it(tmp_path: Path) -> None:
    compactor = RayCompactor(StoreAddress(f"file://{tmp_path}/run"))
    assert not compactor.busy
    assert compactor.poll() is None
