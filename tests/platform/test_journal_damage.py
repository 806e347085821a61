"""A damaged journal: a turned bit is turned back, what is worse comes from the file that wrote it, the rest is an error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.journal_words import add

from stormsail.platform.errors import (
    StorageError,
)
from stormsail.platform.journal import Journal
from stormsail.platform.storage.memory import MemoryStore


def test_a_hole_in_the_journal_is_an_error(file: Path) -> None:
    store = MemoryStore()
    journal = Journal(store, file, writer="w")
    for _ in range(3):
        add(journal)
    store.delete("journal/00000002.json")
    with pytest.raises(StorageError, match="event 2 is missing"):
        Journal.read(store)
    with pytest.raises(StorageError, match="event 2 is missing"):
        Journal.open(store, file.with_name("of another machine"), writer="w")
    assert len(Journal.read(store, after=2)) == 1


def test_a_store_that_lost_events_which_this_file_does_not_have_is_an_error(file: Path) -> None:
    store = MemoryStore()
    journal = Journal(store, file, writer="w")
    for _ in range(3):
        add(journal)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[2])
    store.delete("journal/00000003.json")
    store.delete("journal/00000002.json")
    assert len(lines) == 3
    with pytest.raises(StorageError, match="journal event 2"):
        Journal.open(store, file, writer="w")


@pytest.mark.parametrize("body", [b"", b"{", b"{}"])
def test_a_damaged_event_is_named(file: Path, body: bytes) -> None:
    store = MemoryStore()
    add(Journal(store, file, writer="w"))
    store.put("journal/00000001.json", body)
    with pytest.raises(StorageError, match=r"journal/00000001\.json"):
        Journal.read(store)


def flip(store: MemoryStore, number: int, bit: int) -> str:
    key = f"journal/{number:08d}.json"
    changed = bytearray(store.get(key))
    changed[bit // 8 % len(changed)] ^= 1 << bit % 8
    store.put(key, bytes(changed))
    return key


@given(number=st.integers(1, 3), bit=st.integers(0))
@settings(max_examples=40)
def test_one_turned_bit_changes_nothing_and_is_turned_back(number: int, bit: int) -> None:
    store = MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(store, Path(folder) / "here", writer="w")
        before = [add(journal, f"k{index}", data={"factor": 0.8}) for index in range(3)]
        key = flip(store, number, bit)
        assert Journal.read(store) == before
        assert Journal.open(store, Path(folder) / "elsewhere", writer="v").mended == (key,)
        assert Journal.open(store, Path(folder) / "elsewhere", writer="v").mended == ()


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_what_is_worse_off_comes_from_the_file_that_wrote_it(file: Path, damage: bytes | None) -> None:
    store = MemoryStore()
    journal = Journal(store, file, writer="w")
    before = [add(journal, f"k{index}") for index in range(4)]
    keys = [f"journal/{number:08d}.json" for number in (2, 3)]
    for key in keys:
        if damage is None:
            store.delete(key)
        else:
            store.put(key, damage)
    with pytest.raises(StorageError, match=r"damaged|not a journal event") as caught:
        Journal.open(store, file.with_name("of another machine"), writer="v")
    assert "journal.jsonl" in caught.value.todo
    journal = Journal.open(store, file, writer="v")
    assert sorted(journal.mended) == keys
    assert list(journal.history) == Journal.read(store) == before


def test_a_file_that_may_hold_another_event_is_not_believed(tmp_path: Path) -> None:
    """The newest event may be another writer's, and an event before another writer's too."""
    store = MemoryStore()
    add(Journal(store, tmp_path / "a", writer="old"), "one")
    add(Journal.open(store, tmp_path / "a", writer="new"), "two")
    for number in (1, 2):
        kept = store.get(f"journal/{number:08d}.json")
        store.put(f"journal/{number:08d}.json", b"{}")
        with pytest.raises(StorageError, match="not a journal event"):
            Journal.open(store, tmp_path / "a", writer="new")
        store.put(f"journal/{number:08d}.json", kept)


def test_an_event_under_a_wrong_number_is_an_error(file: Path) -> None:
    store = MemoryStore()
    add(Journal(store, file, writer="w"))
    store.put("journal/00000002.json", store.get("journal/00000001.json"))
    with pytest.raises(StorageError, match="this is event 1"):
        Journal.read(store)
