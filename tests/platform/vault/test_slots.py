"""Slots survive the process, are written by one and never while somebody reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.platform.vault.conftest import Saved

from stormsail.platform.errors import CheckpointError, InternalError, StorageFullError
from stormsail.platform.vault import slots
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.slots import OpenSlot, Slot, check_fits, open_slots, read_record


def test_what_was_sealed_is_there_after_its_process(saved: Saved) -> None:
    bytes_then, path = saved.slots[0].bytes.tobytes(), saved.slots[0].path
    assert path is not None
    saved.slots[0].close()
    again = Slot.lease(path)
    assert again is not None
    assert again.bytes.tobytes() == bytes_then
    assert again.record == saved.record(0)
    again.close()


def test_only_one_process_writes(saved: Saved) -> None:
    path = saved.slots[0].path
    assert path is not None
    assert slots.is_leased(path)
    assert Slot.lease(path) is None
    assert not slots.remove(path)
    saved.slots[0].close()
    assert not slots.is_leased(path)
    assert slots.remove(path)
    assert path not in slots.list_slots(saved.folder)


def test_beginning_gives_up_the_image_that_was_there(saved: Saved) -> None:
    slot = saved.slots[0]
    assert slot.path is not None
    assert slot.begin()
    assert read_record(slot.path) is None
    assert slot.record is None


def test_nothing_is_overwritten_while_it_is_read(saved: Saved) -> None:
    slot = saved.slots[0]
    assert slot.path is not None
    reader = OpenSlot(slot.path)
    assert not slot.begin()
    assert slot.record is not None
    reader.close()
    reader.close()
    assert slot.begin()


def test_nothing_is_read_while_it_is_overwritten(saved: Saved) -> None:
    record = saved.record(0)
    assert saved.slots[0].begin()
    assert len(list(open_slots(saved.folder))) == 1
    assert saved.slots[0].path is not None
    slots.write_record(saved.slots[0].path, record)
    assert len(list(open_slots(saved.folder))) == 1
    saved.slots[0].release()
    assert len(list(open_slots(saved.folder))) == 2


def test_a_damaged_record_is_no_record(saved: Saved) -> None:
    path = saved.slots[0].path
    assert path is not None
    file = path.with_name(path.name + slots.IMAGE)
    file.write_bytes(file.read_bytes().replace(b'"step":10', b'"step":11'))
    with pytest.raises(CheckpointError):
        read_record(path)
    saved.slots[0].close()
    again = Slot.lease(path)
    assert again is not None
    assert again.record is None
    again.close()


def test_a_slot_that_is_removed_while_its_record_is_read_has_none(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the vault, which makes room."""
    path, read_bytes = saved.slots[0].path, Path.read_bytes
    assert path is not None
    saved.slots[0].close()

    def removed_then(file: Path) -> bytes:
        data = read_bytes(file)
        assert slots.remove(path)
        return data

    monkeypatch.setattr(Path, "read_bytes", removed_then)
    assert read_record(path) is None


def test_a_record_of_more_than_there_is_is_refused(saved: Saved) -> None:
    path = saved.slots[0].path
    assert path is not None
    with path.open("r+b") as file:
        file.truncate(64)
    with pytest.raises(CheckpointError, match="more bytes"):
        read_record(path)


def test_a_slot_that_does_not_fit_into_memory_is_refused_before_it_is_written(folder: VaultFolder) -> None:
    with pytest.raises(StorageFullError):
        slots.create(folder, "0000000000", 1 << 43)
    assert slots.list_slots(folder) == []


def test_a_private_slot_needs_no_vault() -> None:
    slot = Slot.private(1000)
    slot.warm()
    assert slot.begin()
    slot.words[0] = 7
    slot.release()
    slot.discard()
    slot.close()
    assert slot.words[0] == 7
    with pytest.raises(InternalError):
        check_fits(slot, 100_000)


def test_a_vault_that_is_not_there_has_no_slots(folder: VaultFolder) -> None:
    folder.remove()
    assert slots.list_slots(folder) == []
    assert list(open_slots(folder)) == []
