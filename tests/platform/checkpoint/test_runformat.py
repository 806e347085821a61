"""The format record is written once, and keeps older software away from newer runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.keys import FORMAT_KEY, commit_key
from stormsail.platform.checkpoint.manifest import FORMAT, FormatRecord
from stormsail.platform.checkpoint.records import Record, seal
from stormsail.platform.checkpoint.runformat import check_format, ensure_format
from stormsail.platform.checkpoint.verify import record_problems
from stormsail.platform.errors import CheckpointError, StateMismatchError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore


class NewerRecord(Record):
    format: int
    chunk_elements: int
    codecs: dict[str, int]
    novelty: str


def test_it_is_written_once() -> None:
    store = MemoryStore()
    ensure_format(store)
    first = store.get_with_info(FORMAT_KEY)
    ensure_format(store)
    assert store.get_with_info(FORMAT_KEY) == first
    check_format(store)


def test_a_newer_format_is_refused_even_with_unknown_keys() -> None:
    store = MemoryStore()
    store.put(FORMAT_KEY, seal(NewerRecord(format=FORMAT + 1, chunk_elements=1 << 20, codecs={}, novelty="yes")))
    for use in (ensure_format, check_format):
        with pytest.raises(StateMismatchError, match=f"format {FORMAT + 1}") as caught:
            use(store)
        assert "newer" in caught.value.todo


def test_another_grid_is_refused() -> None:
    store = MemoryStore()
    store.put(FORMAT_KEY, seal(FormatRecord(format=FORMAT, chunk_elements=1 << 19, codecs={})))
    with pytest.raises(StateMismatchError, match="524288"):
        check_format(store)


@pytest.mark.parametrize("number", [2, 5], ids=["before the first release", "not made yet"])
def test_a_run_with_frames_that_are_coded_otherwise_is_refused(number: int) -> None:
    store = MemoryStore()
    codecs = {"plain": 4, "other": number}
    store.put(FORMAT_KEY, seal(FormatRecord(format=FORMAT, chunk_elements=1 << 20, codecs=codecs)))
    for use in (ensure_format, check_format, record_problems):
        with pytest.raises(StateMismatchError, match=f"codec {number}, which this version does not read") as caught:
            use(store)
        assert "older or newer" in caught.value.todo


def test_a_run_that_uses_fewer_codecs_is_read() -> None:
    store = MemoryStore()
    store.put(FORMAT_KEY, seal(FormatRecord(format=FORMAT, chunk_elements=1 << 20, codecs={"plain": 4})))
    check_format(store)


def flip(store: MemoryStore, key: str, bit: int) -> None:
    changed = bytearray(store.get(key))
    changed[bit // 8] ^= 1 << bit % 8
    store.put(key, bytes(changed))


@given(st.integers(0))
def test_a_damaged_record_is_told_and_written_anew(bit: int) -> None:
    store = MemoryStore()
    assert ensure_format(store) == ""
    whole = store.get(FORMAT_KEY)
    flip(store, FORMAT_KEY, bit % (8 * len(whole)))
    with pytest.raises(CheckpointError, match="damaged"):
        check_format(store)
    assert "damaged" in ensure_format(store)
    assert store.get(FORMAT_KEY) == whole
    check_format(store)


class NewerCommit(Record):
    format: int
    generation: int
    novelty: str


def test_a_damaged_record_of_a_newer_version_is_left_alone() -> None:
    store = MemoryStore()
    ensure_format(store)
    flip(store, FORMAT_KEY, 700)
    damaged = store.get(FORMAT_KEY)
    store.put(commit_key(CheckpointRef(1, 10)), b"damaged too, and so no witness")
    store.put(commit_key(CheckpointRef(1, 20)), seal(NewerCommit(format=FORMAT + 1, generation=1, novelty="yes")))
    with pytest.raises(StateMismatchError, match=f"format {FORMAT + 1}") as caught:
        ensure_format(store)
    assert "newer" in caught.value.todo
    assert store.get(FORMAT_KEY) == damaged


def test_a_place_without_one_holds_no_checkpoints() -> None:
    with pytest.raises(CheckpointError, match="no checkpoints"):
        check_format(MemoryStore())
