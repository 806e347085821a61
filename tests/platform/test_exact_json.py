"""JSON that gives back what went in, as the same bytes each time."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.errors import InternalError
from stormsail.platform.exact_json import Json, dumps, loads

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text().filter(lambda key: key != "$float")
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_goes_in_comes_out(value: Json) -> None:
    assert loads(dumps(value)) == value


@given(values)
def test_any_other_tool_can_read_it(value: Json) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(dumps(value), parse_constant=refuse)


@given(st.dictionaries(keys, scalars, max_size=6))
def test_equal_values_give_equal_bytes(value: dict[str, Json]) -> None:
    assert dumps(dict(reversed(value.items()))) == dumps(value)


def test_numbers_that_json_lacks_come_back() -> None:
    value: Json = {"loss": math.inf, "norms": [-math.inf, 1.5]}
    assert dumps(value) == b'{"loss":{"$float":"inf"},"norms":[{"$float":"-inf"},1.5]}'
    assert loads(dumps(value)) == value
    nan = loads(dumps(math.nan))
    assert isinstance(nan, float)
    assert math.isnan(nan)


def test_a_tuple_comes_back_as_a_list() -> None:
    assert loads(dumps({"a": (1, (2, 3))})) == {"a": [1, [2, 3]]}


def test_one_value_is_one_line() -> None:
    assert b"\n" not in dumps({"text": "two\nlines\r"})


@pytest.mark.parametrize("value", [{1: "a"}, {"a": object()}, {"$float": 1}, b"bytes", {"a": {2: 3}}, "\ud800"])
def test_what_json_cannot_carry_is_a_bug_of_ours(value: object) -> None:
    with pytest.raises(InternalError, match="cannot be written as JSON"):
        dumps(value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"$float":"x"}'])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (its own kinds of it)
        loads(data)
