"""The journal on stores whose lists are old and whose answers come damaged: nothing is lost, and nobody is fenced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stormsail.platform.errors import FencedError, StorageError, StorageUnavailableError
from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import event_key
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo


class BadStore(MemoryStore):
    """Lists as told, damages the next answers, and loses the answers of puts."""

    unlisted: frozenset[int] = frozenset()
    damages = 0  # bytes that the next answers differ in
    damaged_answers = 0
    lost_answers = 0
    gets = 0

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        hidden = {event_key(number) for number in self.unlisted}
        return (info for info in super().list(prefix, start_after=start_after) if info.key not in hidden)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        body = bytearray(super().get(key, start=start, end=end))
        self.gets += 1
        if self.damaged_answers:
            self.damaged_answers -= 1
            for place in range(self.damages):
                body[-20 - place] ^= 1
        return bytes(body)

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        info = super().put(key, data, if_none_match=if_none_match, if_match=if_match)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StorageUnavailableError("lost")
        return info


def written(store: BadStore, file: Path, count: int = 5) -> Journal:
    journal = Journal(store, file, writer="w")
    for number in range(1, count + 1):
        journal.append(f"kind.{number}", time_s=1.0, generation=1)
    return journal


def test_what_an_old_list_lacks_is_there_all_the_same(tmp_path: Path) -> None:
    store = BadStore()
    written(store, tmp_path / "journal.jsonl")
    store.unlisted = frozenset({2, 4})
    assert [event.number for event in Journal.read(store)] == [1, 2, 3, 4, 5]
    assert [event.number for event in Journal.read(store, after=2)] == [3, 4, 5]
    assert Journal.open(store, tmp_path / "elsewhere", writer="v").mended == ()


def test_what_an_old_list_still_shows_is_told_as_missing_or_taken_from_the_file(tmp_path: Path) -> None:
    class Shows(BadStore):
        def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
            yield from (ObjectInfo(event_key(number), 9, "e", 1.0) for number in range(1, 6))

    store = Shows()
    written(store, tmp_path / "journal.jsonl")
    store.delete(event_key(3))
    with pytest.raises(StorageError, match="event 3 is missing, and later ones are there"):
        Journal.read(store)
    journal = Journal.open(store, tmp_path / "journal.jsonl", writer="w")
    assert journal.mended == (event_key(3),)
    assert len(Journal.read(store)) == 5


def test_a_number_far_away_is_no_reason_to_look_for_all_before_it(tmp_path: Path) -> None:
    store = BadStore()
    written(store, tmp_path / "journal.jsonl")
    store.put(event_key(99_999_999), b"not of ours")
    with pytest.raises(StorageError, match="event 6 is missing"):
        Journal.read(store)
    assert store.gets == 0


def test_an_event_that_comes_damaged_is_read_once_more(tmp_path: Path) -> None:
    store = BadStore()
    written(store, tmp_path / "journal.jsonl", count=1)
    store.damages, store.damaged_answers = 3, 1
    assert [event.kind for event in Journal.read(store)] == ["kind.1"]
    store.damaged_answers = 2
    with pytest.raises(StorageError, match="This is not a journal event"):
        Journal.read(store)


def test_a_bit_that_turns_on_the_way_fences_nobody(tmp_path: Path) -> None:
    store = BadStore()
    journal = written(store, tmp_path / "journal.jsonl", count=1)
    store.lost_answers = 1
    with pytest.raises(StorageUnavailableError):
        journal.append("lost.answer", time_s=1.0, generation=1, durable=True)
    store.damages, store.damaged_answers = 1, 1
    assert journal.flush(0.0) == 0
    assert store.damaged_answers == 0
    journal.append("goes.on", time_s=1.0, generation=1, durable=True)
    assert len(Journal.read(store)) == 3


def test_another_writers_event_still_fences(tmp_path: Path) -> None:
    store = BadStore()
    journal = written(store, tmp_path / "journal.jsonl", count=1)
    Journal.open(store, tmp_path / "other", writer="v").append("taken.over", time_s=1.0, generation=2)
    store.damages, store.damaged_answers = 1, 1
    with pytest.raises(FencedError, match=r"Another writer \(v\)"):
        journal.append("too.late", time_s=1.0, generation=1)
