"""Which slot is next: an empty one, else the oldest snapshot's, and never one that is written or read."""

from __future__ import annotations

from pathlib import Path

from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault import slots as files
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.image import ImageRecord
from stormsail.platform.vault.slots import OpenSlot, Slot
from stormsail.workers.ring import Ring


def record(step: int, generation: int = 1) -> ImageRecord:
    return ImageRecord(generation=generation, step=step, rank=0, names=(), pieces=())


def fill(ring: Ring, step: int, generation: int = 1) -> Slot:
    slot = ring.take()
    assert slot is not None
    slot.seal(record(step, generation))
    ring.give_back(slot)
    return slot


def test_the_oldest_snapshot_makes_room() -> None:
    ring = Ring([Slot.private(64) for _ in range(3)])
    filled = [fill(ring, step) for step in (10, 20, 30)]
    assert fill(ring, 40) is filled[0]
    assert fill(ring, 20, generation=2) is filled[1]
    assert [len(list(ring.images(CheckpointRef(1, step)))) for step in (10, 20, 30, 40)] == [0, 0, 1, 1]


def test_one_that_came_to_nothing_goes_first() -> None:
    ring = Ring([Slot.private(64) for _ in range(2)])
    fill(ring, 10)
    failed = ring.take()
    assert failed is not None
    ring.give_back(failed)
    assert ring.take() is failed


def test_there_is_none_while_all_are_written() -> None:
    ring = Ring([Slot.private(64)])
    slot = ring.take()
    assert slot is not None
    assert ring.take() is None
    ring.give_back(slot)
    assert ring.take() is slot


def in_a_vault(tmp_path: Path, count: int) -> Ring:
    (tmp_path / "shm").mkdir()
    folder = VaultFolder(tmp_path / "shm" / "home" / "run")
    folder.make(1 << 20)
    leased = [Slot.lease(files.create(folder, f"{number:010d}", 64)) for number in range(count)]
    return Ring([slot for slot in leased if slot is not None])


def test_saves_that_pile_up_while_the_store_is_away_leave_the_newest_snapshot(tmp_path: Path) -> None:
    ring = in_a_vault(tmp_path, 3)
    for step in (10, 20, 30):
        fill(ring, step)
    waiting = [ring.take() for _ in range(3)]
    assert [slot is None for slot in waiting] == [False, False, True]
    assert [slot.record for slot in ring.slots] == [None, None, record(30)]
    for slot in waiting:
        if slot is not None:
            ring.give_back(slot)
    ring.close()


def test_a_single_slot_is_used_again(tmp_path: Path) -> None:
    ring = in_a_vault(tmp_path, 1)
    assert fill(ring, 10) is fill(ring, 20)
    ring.close()


def test_one_that_is_read_is_left_alone(tmp_path: Path) -> None:
    ring = in_a_vault(tmp_path, 3)
    old, middle, new = fill(ring, 10), fill(ring, 20), fill(ring, 30)
    assert old.path is not None
    reader = OpenSlot(old.path)
    assert ring.take() is middle
    assert ring.take() is None
    reader.close()
    assert ring.take() is old
    ring.give_back(middle)
    assert new.record == record(30)
    ring.close()
    assert files.is_leased(old.path)
    ring.give_back(old)
    assert not files.is_leased(old.path)
