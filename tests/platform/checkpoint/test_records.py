"""Records come back exactly, and any changed byte shows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, JsonValue

from stormsail.platform.checkpoint.records import (
    Record,
    canonical,
    pack,
    parse,
    read_twice,
    seal,
    seal_packed,
    unpack,
    unseal,
    unseal_packed,
)
from stormsail.platform.errors import CheckpointError, InternalError


class Note(Record):
    number: int
    ratio: float = 0.5
    extra: dict[str, JsonValue] = Field(default_factory=dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.dictionaries(st.text(max_size=5), JSON))
def test_any_record_comes_back_exactly(number: int, ratio: float, extra: dict[str, JsonValue]) -> None:
    note = Note(number=number, ratio=ratio, extra=extra)
    found = unseal(seal(note), Note, "note")
    assert found == note
    assert seal(found) == seal(note)


def test_what_came_damaged_is_read_once_more_and_no_more() -> None:
    answers: list[CheckpointError | int] = [
        CheckpointError("torn"),
        7,
        CheckpointError("torn"),
        CheckpointError("gone"),
    ]

    def read() -> int:
        answer = answers.pop(0)
        if isinstance(answer, CheckpointError):
            raise answer
        return answer

    assert read_twice(read) == 7
    with pytest.raises(CheckpointError, match="gone"):
        read_twice(read)


def test_any_changed_byte_and_any_truncation_shows() -> None:
    data = seal(Note(number=3, extra={"a": [1, 2.5, "ä"]}))
    for position in range(len(data)):
        for change in (0x01, 0x20, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= change
            with pytest.raises(CheckpointError):
                unseal(bytes(damaged), Note, "note")
        with pytest.raises(CheckpointError):
            unseal(data[:position], Note, "note")
    with pytest.raises(CheckpointError):
        unseal(data + b"\n", Note, "note")


def test_the_canonical_form_is_sorted_and_tight() -> None:
    assert canonical(Note(number=1, extra={"b": 1, "a": 2})) == b'{"extra":{"a":2,"b":1},"number":1,"ratio":0.5}'


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_cannot_say_is_refused_when_written(value: float) -> None:
    with pytest.raises(InternalError, match="JSON"):
        seal(Note(number=1, extra={"loss": value}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"ratio":0.5}',
        b'{"number":"1"}',
        b'{"number":1.0}',
        b'{"number":true}',
        b'{"number":1,"new":2}',
        b'{"number":1} ,',
        b"[" * 10_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_such_record_is_refused_with_its_key(body: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(body, Note, "some/key")
    assert caught.value.where == "some/key"
    assert caught.value.objects == ("some/key",)


def test_a_packed_record_comes_back_and_any_changed_byte_shows() -> None:
    note = Note(number=3, extra={"a": [1, 2.5, "ä"] * 50})
    data = seal_packed(note)
    assert len(data) < len(seal(note))
    assert unseal_packed(data, Note, "note") == note
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(CheckpointError, match="damaged"):
            unseal_packed(bytes(damaged), Note, "note")
        with pytest.raises(CheckpointError):
            unseal_packed(data[:position], Note, "note")


def test_what_unpacks_to_gigabytes_or_to_nothing_is_refused() -> None:
    bomb = bytearray(pack(Note(number=1)))
    bomb[4:6] = b"\xe0\xff"  # the frame's descriptor: a content of 8 bytes' length
    with pytest.raises(CheckpointError):
        unpack(bytes(bomb), Note, "note")
    with pytest.raises(CheckpointError):
        unpack(b"", Note, "note")
