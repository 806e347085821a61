"""Metric rows: numbered objects, kept in order through outages, bounded in memory."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.fragile_store import FragileStore

from stormsail.platform.errors import InternalError, StorageError
from stormsail.platform.sealed_line import seal_line
from stormsail.platform.series import SeriesWriter, read_series
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress


def steps(store: MemoryStore) -> list[object]:
    return [row["step"] for row in read_series(store)]


def test_rows_come_back_in_order_with_all_their_values() -> None:
    store = MemoryStore()
    writer = SeriesWriter(store)
    writer.add([{"step": 1, "loss": 2.5}, {"step": 2, "loss": math.inf, "outcome": "dropped"}])
    assert writer.pending == 2
    assert list(store.list()) == []
    assert writer.flush() == 0
    writer.add([{"step": 3}])
    assert writer.flush() == 0
    assert list(read_series(store)) == [
        {"step": 1, "loss": 2.5},
        {"step": 2, "loss": math.inf, "outcome": "dropped"},
        {"step": 3},
    ]
    assert [info.key for info in store.list()] == ["series/00000001.jsonl", "series/00000002.jsonl"]


def test_a_flush_without_rows_writes_nothing() -> None:
    store = MemoryStore()
    assert SeriesWriter(store).flush() == 0
    assert list(store.list()) == []


def test_a_new_writer_numbers_on_from_what_is_there() -> None:
    store = MemoryStore()
    for step in (1, 2):
        writer = SeriesWriter(store)
        writer.add([{"step": step}])
        writer.flush()
    assert steps(store) == [1, 2]


def test_two_writers_overwrite_nothing() -> None:
    store = MemoryStore()
    one, two = SeriesWriter(store), SeriesWriter(store)
    for step in range(6):
        writer = (one, two)[step % 2]
        writer.add([{"step": step}])
        assert writer.flush() == 0
    assert steps(store) == list(range(6))


def test_rows_survive_an_outage() -> None:
    store = FragileStore()
    writer = SeriesWriter(store)
    writer.add([{"step": 1}])
    writer.flush()
    store.go_down()
    writer.add([{"step": 2}])
    assert writer.flush() == 1
    writer.add([{"step": 3}])
    assert writer.flush() == 2
    store.come_back()
    assert writer.flush() == 0
    assert steps(store) == [1, 2, 3]


def test_a_flush_whose_answer_was_lost_doubles_no_row() -> None:
    store = FragileStore()
    writer = SeriesWriter(store)
    writer.add([{"step": 1}])
    store.lost_answers = 1
    assert writer.flush() == 1
    writer.add([{"step": 2}])
    assert writer.flush() == 0
    assert steps(store) == [1, 2]


def test_too_many_rows_push_out_the_oldest_and_are_counted() -> None:
    store = FragileStore()
    writer = SeriesWriter(store, capacity=3)
    store.go_down()
    for step in range(5):
        writer.add([{"step": step}])
    assert (writer.pending, writer.dropped) == (3, 2)
    store.come_back()
    writer.flush()
    assert steps(store) == [2, 3, 4]
    assert writer.dropped == 2


def test_many_rows_are_cut_into_several_objects() -> None:
    store = MemoryStore()
    writer = SeriesWriter(store)
    writer.add([{"step": step} for step in range(25_000)])
    assert writer.flush() == 0
    assert len(list(store.list())) == 3
    assert steps(store) == list(range(25_000))


def test_reading_can_go_on_after_an_object() -> None:
    store = MemoryStore()
    writer = SeriesWriter(store)
    for step in (1, 2, 3):
        writer.add([{"step": step}])
        writer.flush()
    assert [row["step"] for row in read_series(store, after="series/00000002.jsonl")] == [3]


@pytest.mark.parametrize(
    "body", [b"{\n", b'{"a":1}\n', seal_line(b"{") + b"\n", seal_line(b"[1]"), seal_line(b'{"a":1}') + b"\n\xff\n"]
)
def test_damaged_rows_are_named_with_their_line(body: bytes) -> None:
    store = MemoryStore()
    store.put("series/00000001.jsonl", body)
    with pytest.raises(StorageError, match=r"series/00000001\.jsonl, line [12]"):
        list(read_series(store))


def test_a_turned_bit_is_turned_back_and_worse_rows_are_left_out_where_that_is_asked_for() -> None:
    store = MemoryStore()
    writer = SeriesWriter(store)
    writer.add([{"step": step, "loss": 2.5} for step in range(3)])
    writer.flush()
    key = "series/00000001.jsonl"
    store.put(key, store.get(key).replace(b'"loss":2.5', b'"loss":3.5', 1))
    assert [row["loss"] for row in read_series(store)] == [2.5, 2.5, 2.5]
    store.put(key, store.get(key).replace(b'"step":1', b'"step":"one"'))
    told: list[StorageError] = []
    assert [row["step"] for row in read_series(store, damaged=told.append)] == [0, 2]
    assert [error.where for error in told] == [f"{store.url}/{key}, line 2"]


def test_a_minus_sign_that_became_a_carriage_return_is_turned_back() -> None:
    store = MemoryStore()
    writer = SeriesWriter(store)
    writer.add([{"step": step, "value": -1.0} for step in range(3)])
    writer.flush()
    key = "series/00000001.jsonl"
    store.put(key, store.get(key).replace(b"-1.0", b"\r1.0", 1))
    assert [row["value"] for row in read_series(store)] == [-1.0, -1.0, -1.0]


def test_a_row_that_is_no_json_is_refused_and_takes_no_other_with_it() -> None:
    writer = SeriesWriter(MemoryStore())
    with pytest.raises(InternalError):
        writer.add([{"step": 1}, {"step": object()}])
    assert writer.pending == 0


def test_many_threads_lose_no_row() -> None:
    store = MemoryStore()
    writer = SeriesWriter(store)

    def work(thread: int) -> None:
        for count in range(50):
            writer.add([{"step": thread * 50 + count}])
            writer.flush()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert writer.flush() == 0
    assert sorted(row["step"] for row in read_series(store)) == list(range(200))  # type: ignore[type-var] # all numbers


def test_rows_live_on_real_s3(s3_address: StoreAddress) -> None:
    store = open_store(s3_address)
    writer = SeriesWriter(store)
    writer.add([{"step": 1, "loss": 0.5}])
    assert writer.flush() == 0
    assert list(read_series(store)) == [{"step": 1, "loss": 0.5}]
