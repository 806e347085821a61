"""The journal's local file: whole lines, whatever a dying writer left."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.errors import StorageDeniedError, StorageError
from stormsail.platform.journal_events import Entry, Event, make_entry
from stormsail.platform.journal_file import JournalFile


def entry(number: int, writer: str = "w") -> Entry:
    return make_entry(Event(number, float(number), "k", 1, data={"text": "ä" * number}), writer)


def test_events_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    for number in (1, 2, 3):
        JournalFile(path).append(entry(number))
    assert JournalFile(path).read() == [entry(1), entry(2), entry(3)]


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert JournalFile(tmp_path / "none").read() == []
    assert not (tmp_path / "none").exists()


@given(lost=st.integers(1, 200), count=st.integers(1, 5))
def test_wherever_a_dying_writer_stopped_whole_events_are_kept_and_others_follow(lost: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        for number in range(1, count + 1):
            JournalFile(path).append(entry(number))
        whole = path.read_bytes()
        path.write_bytes(whole[: max(len(whole) - lost, 0)])
        kept = JournalFile(path).read()
        assert kept == [entry(number) for number in range(1, len(kept) + 1)]
        assert len(kept) >= whole[: max(len(whole) - lost, 0)].count(b"\n")
        JournalFile(path).append(entry(len(kept) + 1))
        assert JournalFile(path).read() == [*kept, entry(len(kept) + 1)]


def test_a_last_line_of_which_only_the_length_arrived_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    JournalFile(path).append(entry(1))
    with path.open("ab") as file:
        file.write(b"\0" * 50 + b"\n")
    assert JournalFile(path).read() == [entry(1)]
    JournalFile(path).append(entry(2))
    assert JournalFile(path).read() == [entry(1), entry(2)]


def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for number in (1, 2, 3):
        JournalFile(path).append(entry(number))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"garbage", *lines[2:]]))
    with pytest.raises(StorageError, match="line 2") as caught:
        JournalFile(path).read()
    assert "Move the file away" in caught.value.todo


def test_a_file_set_aside_makes_room_for_a_new_one(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal")
    for number in (1, 2):
        file.append(entry(number))
        kept = file.set_aside("old")
        assert kept.name == f"journal.old.{number}"
        assert JournalFile(kept).read() == [entry(number)]
    assert file.read() == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageDeniedError):
        JournalFile(tmp_path / "file" / "journal").append(entry(1))
