"""What commands say: JSON with a version, and plain lines that get colour only on a terminal."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import Literal, TextIO

JSON_VERSION = 1

Style = Literal["bold", "dim", "red", "green", "yellow"]
_CODES: Mapping[Style, str] = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def emit_json(obj: Mapping[str, object], *, stream: TextIO | None = None) -> None:
    """Write one line of JSON with `"version": 1` first; nan and inf become null.

    Args:
        obj: Keys to write; dataclasses, tuples, enums and paths inside are turned into JSON.
        stream: Where to; None is stdout.
    """
    line = json.dumps({"version": JSON_VERSION, **_object(obj)}, ensure_ascii=False, allow_nan=False)
    emit(line, stream=stream)


def emit(text: str, *, stream: TextIO | None = None) -> None:
    """Write one line at once (a reader at the other end of a pipe sees it now); None is stdout."""
    print(text, file=stream or sys.stdout, flush=True)


def styled(text: str, style: Style, *, stream: TextIO | None = None) -> str:
    """The text with colour codes if `stream` (None: stdout) shows them, else as it is."""
    return f"\033[{_CODES[style]}m{text}\033[0m" if colour_wanted(stream or sys.stdout) else text


def colour_wanted(stream: TextIO) -> bool:
    """Whether colour may go there: a terminal that is not dumb, and no NO_COLOR in the environment."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def _object(value: Mapping[str, object]) -> dict[str, object]:
    return {str(key): _jsonable(item) for key, item in value.items()}


def _jsonable(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, PurePath):
        return str(value)
    return _container(value)


def _container(value: object) -> object:
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_jsonable(item) for item in value), key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    msg = f"{type(value).__name__} has no JSON form"
    raise TypeError(msg)
