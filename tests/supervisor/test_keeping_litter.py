"""What dead and given-up saves have written is removed, and no checkpoint with it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import KEEP_LITTLE, LIMIT_S, Staff, checkpoint_meta, data_of, small_config, written_part

from stormsail.platform.checkpoint.keys import owner_of
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import CheckpointError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.local import LocalStore


@pytest.fixture
def config() -> RunConfig:
    return small_config(checkpoint=KEEP_LITTLE)


def test_the_sweep_removes_what_dead_saves_left_behind_and_no_checkpoint(staff: Staff) -> None:
    staff.checkpoint(1)
    written_part(staff.store, CheckpointRef(1, 2), 0)
    objects = len(list(staff.store.list()))
    staff.ledger.note(
        "generation.created", generation=2, parent=1, fork_step=1, reason="another supervisor", owner="test"
    )
    staff.keeper.sweep(4e9)
    assert len(list(staff.store.list("packs/"))) == 1
    assert len(list(staff.store.list())) < objects + 2
    assert staff.steps_on_store == [1]
    assert data_of(Journal.read(staff.store), "checkpoint.swept")["objects"] >= 1


def test_the_sweep_removes_what_was_half_written(tmp_path: Path) -> None:
    made = Staff(LocalStore(tmp_path / "store"), tmp_path / "local", small_config())
    made.begin()
    made.checkpoint(1)
    torn = next((tmp_path / "store").rglob("parts/*/*")) / "~part-0123456789abcdef-00000"
    torn.write_bytes(b"half")
    os.utime(torn, (1e9, 1e9))
    made.keeper.sweep(time.time())
    assert not torn.exists()
    assert data_of(made.ledger.look((0, 0)).events, "checkpoint.swept")["uploads"] == 1
    made.close()


def test_a_sweep_that_finds_nothing_says_nothing(staff: Staff) -> None:
    staff.keeper.sweep(4e9)
    assert "checkpoint.swept" not in staff.journal


def test_what_given_up_saves_wrote_is_removed_in_time_and_what_goes_on_is_not(tmp_path: Path) -> None:
    """Without a look at any clock of the wall, as that of the store may be another."""
    staff = Staff(FragileStore(), tmp_path, small_config(checkpoint=KEEP_LITTLE))
    now = [0.0]
    staff.keeper._clock = lambda: now[0]
    staff.begin()
    written_part(staff.store, CheckpointRef(1, 5), 0)
    staff.keeper.missed(1, 5, "the other rank was late")
    staff.checkpoint(6)
    assert len(list(staff.store.list("packs/"))) == 2
    now[0] = 3 * LIMIT_S
    written_part(staff.store, CheckpointRef(1, 8), 0)  # is being written
    staff.checkpoint(7)
    left = {owner_of(info.key) for info in staff.store.list("packs/")}
    assert left == {CheckpointRef(1, step) for step in (6, 7, 8)}
    assert staff.journal.count("checkpoint.swept") == 1
    staff.close()


def test_a_save_that_a_jumping_clock_swept_is_refused_and_never_committed_in_part(staff: Staff) -> None:
    staff.checkpoint(1)
    part = written_part(staff.store, CheckpointRef(1, 2), 0)
    staff.keeper.sweep(time.time() + 1e6)
    with pytest.raises(CheckpointError, match="missing"):
        commit(staff.store, [part], checkpoint_meta(2), parent=None, time_s=1.0)
    assert staff.steps_on_store == [1]
