"""The journal: numbered, fenced, and complete whatever the store does meanwhile."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fragile_store import FragileStore

from stormsail.platform.errors import (
    FencedError,
    InternalError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.journal import Event, Journal
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import ObjectStore, StoreAddress


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.at_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at_sleep()


def add(journal: Journal, kind: str = "step.done", **more: object) -> Event:
    return journal.append(kind, time_s=1.0, generation=1, **more)  # type: ignore[arg-type] # for brevity


def kinds(store: ObjectStore) -> list[str]:
    return [event.kind for event in Journal.read(store)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


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


def test_a_missing_store_is_never_an_empty_journal(file: Path) -> None:
    store = FragileStore()
    store.go_down()
    with pytest.raises(StorageUnavailableError):
        Journal.open(store, file, writer="w")


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
