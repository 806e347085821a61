"""The journal and two writers: the later one owns it, and what the earlier one had not sent is not lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.journal_words import add, kinds

from stormsail.platform.errors import (
    FencedError,
)
from stormsail.platform.journal import Journal
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import StoreAddress


def test_two_writers_fence_each_other_by_number(tmp_path: Path) -> None:
    store = MemoryStore()
    old = Journal(store, tmp_path / "a", writer="old")
    add(old, "one")
    new = Journal.open(store, tmp_path / "b", writer="new")
    add(new, "two")
    with pytest.raises(FencedError, match=r"\(new\) has written journal event 2"):
        add(old, "late")
    with pytest.raises(FencedError):
        add(old, "later")
    with pytest.raises(FencedError):
        old.flush(0.0)
    assert kinds(store) == ["one", "two"]
    assert len((tmp_path / "a").read_bytes().splitlines()) == 2  # nothing more is written once fenced
    add(new, "three")


def test_a_writer_that_was_cut_off_is_fenced_when_it_is_back(tmp_path: Path) -> None:
    store = FragileStore()
    old = Journal(store, tmp_path / "a", writer="old")
    store.go_down()
    add(old, "unsent")
    store.come_back()
    add(Journal.open(store, tmp_path / "b", writer="new"), "one")
    with pytest.raises(FencedError):
        old.flush(10.0)


def test_a_writer_whose_numbers_were_taken_meanwhile_is_fenced_at_once(tmp_path: Path) -> None:
    store = FragileStore()
    dead = Journal(store, tmp_path / "a", writer="old")
    store.go_down()
    add(dead, "unsent")
    store.come_back()
    add(Journal.open(store, tmp_path / "b", writer="new"), "one")
    with pytest.raises(FencedError, match=r"\(new\)"):
        Journal.open(store, tmp_path / "a", writer="old")


def test_unsent_events_of_another_writer_are_sent_where_nobody_has_written_since(tmp_path: Path) -> None:
    store, file = FragileStore(), tmp_path / "a"
    dead = Journal(store, file, writer="old")
    add(dead, "one")
    store.go_down()
    add(dead, "unsent")
    store.come_back()
    add(Journal.open(store, file, writer="new", deadline_s=5.0), "mine")
    assert kinds(store) == ["one", "unsent", "mine"]


def test_unsent_events_whose_number_another_has_taken_are_set_aside_and_not_lost(tmp_path: Path) -> None:
    store, file = FragileStore(), tmp_path / "a"
    dead = Journal(store, file, writer="old")
    add(dead, "one")
    store.go_down()
    add(dead, "unsent")
    store.come_back()
    add(Journal.open(store, tmp_path / "b", writer="between"), "two")
    journal = Journal.open(store, file, writer="new")
    assert b"unsent" in (tmp_path / "a.old.1").read_bytes()
    add(journal, "mine")
    assert kinds(store) == ["one", "two", "mine"]
    assert kinds(store) == [event.kind for event in Journal.open(store, file, writer="new").history]


def test_sent_events_of_another_writer_stay_where_they_are(file: Path) -> None:
    store = MemoryStore()
    add(Journal(store, file, writer="old"), "one")
    add(Journal.open(store, file, writer="new"), "two")
    assert len(file.read_bytes().splitlines()) == 2
    assert list(file.parent.iterdir()) == [file]


def test_of_two_writers_on_real_s3_one_is_fenced(s3_address: StoreAddress, tmp_path: Path) -> None:
    journals = [Journal(S3Store(s3_address), tmp_path / name, writer=name) for name in ("a", "b")]

    def write(journal: Journal) -> int:
        for count in range(5):
            try:
                add(journal, durable=True, deadline_s=30.0)
            except FencedError:
                return count
        return 5

    with ThreadPoolExecutor(2) as pool:
        written = list(pool.map(write, journals))
    assert min(written) < 5
    assert len(Journal.read(S3Store(s3_address))) >= max(written)
