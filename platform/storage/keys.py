"""Which keys are allowed: a check made once, before any store sees the key.

Stores disagree about empty segments, `.`, `..`, spaces and trailing slashes (some fold `a//b` into
`a/b`, some refuse it), so only keys that all of them treat alike are let through. (pure)
"""

from __future__ import annotations

import re

from stormsail.platform.errors import InternalError

MAX_KEY_CHARS = 900  # S3 allows 1,024 bytes; the rest is room for the store's own prefix
MAX_SEGMENT_CHARS = 200  # file systems allow 255 bytes; the rest is room for temporary names

_SEGMENT = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_SEGMENT_CHARS}}}")
_DOTS = (".", "..")


def is_segment(text: str) -> bool:
    """Whether this can be one segment of a key."""
    return _SEGMENT.fullmatch(text) is not None and text not in _DOTS


def is_key(text: str) -> bool:
    """Whether this can be a key."""
    return len(text) <= MAX_KEY_CHARS and all(is_segment(part) for part in text.split("/"))


def check_key(key: str) -> str:
    """Return the key. Raises `InternalError` if it is not allowed: keys are made by us, never typed."""
    if not is_key(key):
        raise InternalError(
            "This is not an object key: keys are '/'-separated segments of A-Z a-z 0-9 . _ -, none of them '.' or '..'",
            where=repr(key),
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix, which may end inside a segment. Raises `InternalError` if no key can start with it."""
    *whole, last = prefix.split("/")
    if not all(is_segment(part) for part in whole) or not (last == "" or _SEGMENT.fullmatch(last)):
        raise InternalError("No object key can start with this prefix", where=repr(prefix))
    return prefix


def clip(start: int, end: int | None, size_bytes: int) -> tuple[int, int]:
    """The part of [start, end) that an object of this size has, as slicing would give it."""
    stop = size_bytes if end is None else min(end, size_bytes)
    return min(start, size_bytes), max(stop, min(start, size_bytes))


def check_range(start: int, end: int | None) -> None:
    """Raise `InternalError` for a range that runs backwards or starts below zero."""
    if start < 0 or (end is not None and end < start):
        raise InternalError(f"Bytes {start} to {end} are not a range")


def check_conditions(*, if_none_match: bool, if_match: str | None) -> None:
    """Raise `InternalError` if both conditions are asked for: no object can meet them."""
    if if_none_match and if_match is not None:
        raise InternalError("if_none_match and if_match exclude each other")
