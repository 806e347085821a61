"""Which keys, prefixes and ranges are allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.errors import InternalError
from stormsail.platform.storage.keys import (
    check_conditions,
    check_key,
    check_prefix,
    check_range,
    clip,
    is_key,
    is_segment,
)

segments = st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True).filter(lambda text: text not in (".", ".."))
allowed = st.lists(segments, min_size=1, max_size=5).map("/".join)


@given(allowed)
def test_segments_joined_by_slashes_are_a_key(key: str) -> None:
    assert check_key(key) == key


@given(allowed, st.integers(0, 60))
def test_every_beginning_of_a_key_is_a_prefix(key: str, length: int) -> None:
    assert check_prefix(key[:length]) == key[:length]


@given(st.text(max_size=20))
def test_a_key_never_leaves_its_folder(text: str) -> None:
    if is_key(text):
        assert not text.startswith("/")
        assert not {"", ".", ".."} & set(text.split("/"))
        assert text.isascii()


@pytest.mark.parametrize(
    "key", ["", "/", "a//b", "../a", "a/..", "a b", "a\n", "a~b", "é", "s" * 201, "a/" * 450 + "a"]
)
def test_what_stores_disagree_about_is_no_key(key: str) -> None:
    assert not is_key(key)
    with pytest.raises(InternalError, match="not an object key"):
        check_key(key)


@pytest.mark.parametrize("prefix", ["/", "..//", "../a", "a//", "a b", "a/./b"])
def test_what_no_key_begins_with_is_no_prefix(prefix: str) -> None:
    with pytest.raises(InternalError):
        check_prefix(prefix)


def test_helper_files_of_the_local_store_can_be_no_segment() -> None:
    assert not is_segment("~lock")


@given(st.binary(max_size=20), st.integers(0, 25), st.none() | st.integers(0, 25))
def test_clipping_gives_what_a_slice_gives(body: bytes, start: int, end: int | None) -> None:
    first, stop = clip(start, end, len(body))
    assert 0 <= first <= stop <= len(body)
    assert body[first:stop] == body[start:end]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (3, 2), (-2, -1)])
def test_a_backward_range_is_refused(start: int, end: int | None) -> None:
    with pytest.raises(InternalError):
        check_range(start, end)


def test_only_one_condition_may_be_set() -> None:
    check_conditions(if_none_match=True, if_match=None)
    check_conditions(if_none_match=False, if_match="x")
    with pytest.raises(InternalError):
        check_conditions(if_none_match=True, if_match="x")
