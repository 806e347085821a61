"""The journal while the store is away: events wait in the file, and follow in order without a loss."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fragile_store import FragileStore
from tests.support.journal_words import Time, add, kinds

from stormsail.platform.errors import (
    StorageDeniedError,
    StorageUnavailableError,
)
from stormsail.platform.journal import Journal


def test_while_the_store_is_away_events_wait_in_the_file_and_follow_in_order(file: Path) -> None:
    store = FragileStore()
    journal = Journal(store, file, writer="w")
    add(journal, "one")
    store.go_down()
    add(journal, "two")
    add(journal, "three")
    assert journal.pending == 2
    assert len(file.read_bytes().splitlines()) == 3
    assert journal.flush(0.0) == 2
    store.come_back()
    assert journal.flush(0.0) == 0
    assert kinds(store) == ["one", "two", "three"]


def test_a_store_that_is_away_is_not_asked_at_each_event(file: Path) -> None:
    store, time = FragileStore(), Time()
    journal = Journal(store, file, writer="w", clock=lambda: time.now, sleep=time.sleep)
    store.go_down()
    for _ in range(5):
        add(journal)
    assert store.puts == 1
    time.now += 60.0
    store.come_back()
    add(journal)
    assert journal.pending == 0
    assert len(Journal.read(store)) == 6


def test_a_durable_event_is_in_the_store_when_it_returns(file: Path) -> None:
    store, time = FragileStore(), Time()
    journal = Journal(store, file, writer="w", clock=lambda: time.now, sleep=time.sleep)
    store.go_down()
    add(journal, "one")

    def come_back_later() -> None:
        if time.now > 20.0:
            store.come_back()

    time.at_sleep = come_back_later
    add(journal, "two", durable=True, deadline_s=60.0)
    assert kinds(store) == ["one", "two"]
    assert 20.0 < time.now < 25.0


def test_a_durable_event_ends_its_wait_and_is_kept_for_later(file: Path) -> None:
    store, time = FragileStore(), Time()
    journal = Journal(store, file, writer="w", clock=lambda: time.now, sleep=time.sleep)
    store.go_down()
    with pytest.raises(StorageUnavailableError, match="within 30 s: Nobody answers") as caught:
        add(journal, "one", durable=True, deadline_s=30.0)
    assert str(file) in caught.value.todo
    assert time.now == 30.0
    store.come_back()
    assert journal.flush(0.0) == 0
    assert kinds(store) == ["one"]


def test_a_durable_event_does_not_wait_for_a_store_that_refuses(file: Path) -> None:
    store, time = FragileStore(), Time()
    journal = Journal(store, file, writer="w", clock=lambda: time.now, sleep=time.sleep)
    store.down = StorageDeniedError("no bucket")
    with pytest.raises(StorageDeniedError):
        add(journal, durable=True, deadline_s=300.0)
    assert time.now == 0.0
    add(journal, "not durable, so it goes on")
    assert journal.pending == 2


def test_an_event_whose_answer_was_lost_is_recognised_as_ours(file: Path) -> None:
    store = FragileStore()
    journal = Journal(store, file, writer="w")
    store.lost_answers = 1
    add(journal, "one")
    assert journal.pending == 1
    assert journal.flush(0.0) == 0
    add(journal, "two")
    assert kinds(store) == ["one", "two"]


def test_a_writer_that_died_with_unsent_events_sends_them_when_it_is_back(file: Path) -> None:
    store = FragileStore()
    dead = Journal(store, file, writer="w")
    add(dead, "one")
    store.go_down()
    add(dead, "two")
    add(dead, "three")
    store.come_back()
    journal = Journal.open(store, file, writer="w")
    assert journal.pending == 0
    assert [event.kind for event in journal.history] == ["one", "two", "three"]
    assert add(journal, "four").number == 4
    assert kinds(store) == ["one", "two", "three", "four"]


def test_a_missing_store_is_never_an_empty_journal(file: Path) -> None:
    store = FragileStore()
    store.go_down()
    with pytest.raises(StorageUnavailableError):
        Journal.open(store, file, writer="w")


@settings(max_examples=60)
@given(steps=st.lists(st.sampled_from(["append", "down", "up", "lose", "crash", "tear", "flush"]), max_size=25))
def test_whatever_happens_to_one_writer_no_event_is_lost_doubled_or_reordered(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, file, time = FragileStore(), Path(folder) / "journal", Time()
        journal = Journal(store, file, writer="w", clock=lambda: time.now, sleep=time.sleep)
        written: list[str] = []
        for number, step in enumerate(steps):
            if step == "append":
                written.append(add(journal, f"k{number}").kind)
            elif step == "down":
                store.go_down()
            elif step == "up":
                store.come_back()
            elif step == "lose":
                store.lost_answers = 1
            elif step == "flush":
                journal.flush(0.0)
            else:
                if step == "tear" and file.exists():
                    with file.open("ab") as torn:
                        torn.write(b'{"number": 7, "ki')
                store.come_back()
                journal = Journal.open(store, file, writer="w")
        store.come_back()
        store.lost_answers = 0
        assert journal.flush(0.0) == 0
        assert kinds(store) == written
