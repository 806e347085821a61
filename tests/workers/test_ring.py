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


def test_one_that_is_read_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    folder = VaultFolder(tmp_path / "shm" / "home" / "run")
    folder.make(1 << 20)
    leased = [Slot.lease(files.create(folder, name, 64)) for name in ("0000000000", "0000000001")]
    ring = Ring([slot for slot in leased if slot is not None])
    old, new = fill(ring, 10), fill(ring, 20)
    assert old.path is not None
    reader = OpenSlot(old.path)
    assert ring.take() is new
    reader.close()
    assert ring.take() is old
    ring.close()
    assert files.is_leased(old.path)
    ring.give_back(old)
    assert not files.is_leased(old.path)
