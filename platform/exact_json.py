"""JSON that gives back exactly what went in, non-finite floats included, always as the same bytes.

Losses and norms of a broken run are often inf or nan, which plain JSON cannot say and many readers
refuse. They are written as `{"$float": "inf"}`, so that what is stored is valid JSON for any tool.
(pure)
"""

from __future__ import annotations

import json
import math
from typing import TypeAlias

from stormsail.platform.errors import InternalError

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

_MARK = "$float"


def dumps(value: object) -> bytes:
    """Encode as one line of UTF-8 JSON: sorted keys, no spaces, so that equal values give equal bytes.

    Raises:
        InternalError: The value holds something that JSON cannot carry.
    """
    try:
        text = json.dumps(_marked(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InternalError(f"A value cannot be written as JSON: {error}", where=type(value).__name__) from error


def loads(data: bytes | str) -> Json:
    """Decode what `dumps` wrote.

    Raises:
        ValueError: This is not JSON.
    """
    decoded: Json = json.loads(data, object_hook=_unmarked)
    return decoded


def _marked(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {_MARK: repr(value)}
    if isinstance(value, dict):
        return {_key(key): _marked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item) for item in value]
    return value


def _key(key: object) -> str:
    # json.dumps would turn 1 and True into strings, and give back another dictionary than it got.
    if not isinstance(key, str) or key == _MARK:
        msg = f"a key must be text other than {_MARK!r}, not {key!r}"
        raise TypeError(msg)
    return key


def _unmarked(value: dict[str, Json]) -> Json:
    if value.keys() == {_MARK}:
        return float(str(value[_MARK]))
    return value
