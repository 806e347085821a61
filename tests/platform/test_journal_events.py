"""Events as values, bytes and keys."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.errors import InternalError, StorageError
from stormsail.platform.journal_events import Event, event_key, event_number, make_entry, read_entry
from stormsail.platform.sealed_line import seal_line

events = st.builds(
    Event,
    number=st.integers(1, 99_999_999),
    time_s=st.floats(0, 1e10),
    kind=st.text(),
    generation=st.integers(0),
    step=st.none() | st.integers(0),
    attempt=st.none() | st.integers(1),
    data=st.dictionaries(st.text().filter(lambda key: key != "$float"), st.text() | st.floats(allow_nan=False)),
)


@given(events, st.text())
def test_an_event_comes_back_from_its_bytes(event: Event, writer: str) -> None:
    entry = make_entry(event, writer)
    assert (entry.event, entry.writer) == (event, writer)
    assert read_entry(entry.body, where="x") == entry
    assert b"\n" not in entry.body


@given(st.integers(1, 99_999_999))
def test_a_number_comes_back_from_its_key(number: int) -> None:
    assert event_number(event_key(number)) == number


def test_keys_sort_like_numbers() -> None:
    keys = [event_key(number) for number in (1, 2, 9, 10, 99, 100, 12345678)]
    assert keys == sorted(keys)
    assert keys[0] == "journal/00000001.json"


@pytest.mark.parametrize("key", ["journal/1.json", "journal/00000001", "x/00000001.json", "journal/00000001.json.tmp"])
def test_other_keys_are_no_events(key: str) -> None:
    assert event_number(key) is None


def test_what_an_event_says_of_infinite_losses_is_kept() -> None:
    event = make_entry(Event(1, 0.0, "k", 1, data={"loss": math.inf, "pair": [1, 2]}), "w").event
    assert event.data == {"loss": math.inf, "pair": [1, 2]}


def test_data_that_is_no_json_is_refused() -> None:
    with pytest.raises(InternalError):
        make_entry(Event(1, 0.0, "k", 1, data={"x": object()}), "w")  # type: ignore[dict-item] # on purpose


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b'{"writer":"w"}',
        b'{"writer":"w","number":"1","time_s":0,"kind":"k","generation":1}',
        b'{"writer":"w","number":1,"time_s":0,"kind":"k","generation":1.5}',
        b'{"writer":"w","number":true,"time_s":0,"kind":"k","generation":1}',
        b'{"writer":1,"number":1,"time_s":0,"kind":"k","generation":1}',
        b'{"writer":"w","number":1,"time_s":0,"kind":"k","generation":1,"more":2}',
    ],
)
def test_bytes_that_are_no_event_are_told(body: bytes) -> None:
    for line in (body, seal_line(body)):
        with pytest.raises(StorageError, match="not a journal event") as caught:
            read_entry(line, where="there")
        assert caught.value.where == "there"


def test_a_turned_bit_is_turned_back() -> None:
    entry = make_entry(Event(1, 0.0, "lr.cut", 1, data={"factor": 0.8}), "w")
    turned = entry.body.replace(b"0.8", b"0.9")
    assert turned != entry.body
    assert read_entry(turned, where="there") == entry
