"""The journal: numbered events that read back equal, from this machine, from another, and from any thread."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.journal_words import add, kinds

from stormsail.platform.errors import (
    InternalError,
    StorageDeniedError,
)
from stormsail.platform.journal import Journal
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress


def test_events_are_numbered_and_read_back_equal(file: Path) -> None:
    store = MemoryStore()
    journal = Journal(store, file, writer="w")
    first = journal.append("run.started", time_s=10.0, generation=1, data={"config": {"lr": (0.1, 0.2)}})
    second = journal.append(
        "ladder.decided", time_s=11.0, generation=2, step=70, attempt=3, data={"loss": float("inf")}
    )
    assert (first.number, second.number) == (1, 2)
    assert first.data == {"config": {"lr": [0.1, 0.2]}}
    assert Journal.read(store) == [first, second]
    assert Journal.read(store, after=1) == [second]
    assert Journal.read(store, after=2) == []


def test_the_object_and_the_local_line_are_the_same_bytes(file: Path) -> None:
    store = MemoryStore()
    add(Journal(store, file, writer="w"))
    assert file.read_bytes() == store.get("journal/00000001.json") + b"\n"
    assert json.loads(file.read_bytes())["body"]["writer"] == "w"


def test_a_journal_is_continued_by_another_process(file: Path) -> None:
    store = MemoryStore()
    add(Journal(store, file, writer="w"), "one")
    journal = Journal.open(store, file, writer="w")
    assert [event.kind for event in journal.history] == ["one"]
    assert add(journal, "two").number == 2
    assert kinds(store) == ["one", "two"]


def test_a_journal_is_continued_on_another_machine(tmp_path: Path) -> None:
    store = MemoryStore()
    add(Journal(store, tmp_path / "here", writer="w1"), "one")
    journal = Journal.open(store, tmp_path / "there", writer="w2")
    assert add(journal, "two").number == 2
    assert add(Journal.open(store, tmp_path / "there", writer="w2"), "three").number == 3


def test_without_the_local_file_nothing_is_recorded(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "file").write_text("")
    journal = Journal(store, tmp_path / "file" / "journal", writer="w")
    with pytest.raises(StorageDeniedError):
        add(journal)
    assert list(store.list()) == []
    assert journal.pending == 0


def test_data_that_is_no_json_is_refused_before_anything_is_written(file: Path) -> None:
    journal = Journal(MemoryStore(), file, writer="w")
    with pytest.raises(InternalError):
        add(journal, data={"x": object()})
    assert add(journal).number == 1


def test_many_threads_append_without_a_hole_and_leave_nothing_pending(file: Path) -> None:
    store = MemoryStore()
    journal = Journal(store, file, writer="w")
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda index: add(journal, f"k{index}").number, range(60)))
    assert sorted(numbers) == list(range(1, 61))
    assert journal.flush(10.0) == 0
    assert len(Journal.read(store)) == 60


def test_the_journal_lives_on_real_s3_and_in_a_folder(s3_address: StoreAddress, tmp_path: Path) -> None:
    for number, address in enumerate((s3_address, StoreAddress(f"file://{tmp_path}/store"))):
        store = open_store(address)
        journal = Journal(store, tmp_path / f"journal-{number}", writer="w")
        for kind in ("one", "two", "three"):
            add(journal, kind, durable=True, deadline_s=30.0)
        assert kinds(store) == ["one", "two", "three"]
