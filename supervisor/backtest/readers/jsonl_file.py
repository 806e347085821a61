"""Reads a curve from JSON lines, as most trackers export them; nested objects are taken apart.

A trainer that logs training and evaluation into one file gives rows without a loss: they are passed over. A whole
JSON document is read too: a list of rows, or a trainer's state with its `log_history`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns, choose
from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.readers.csv_file import finish, to_point

Cells = dict[str, object]
_FLOAT = "$float"  # how Stormsail's own series say nan and inf
_LISTS = ("log_history", "history", "rows")


def read_jsonl(path: Path, columns: Columns) -> Curve:
    """Read one row per line, or one document.

    Raises:
        ConfigError: A line is no JSON object, or nothing looks like a loss.
    """
    return curve_of(list(_rows(path)), columns, path)


def curve_of(rows: Iterable[tuple[str, Cells]], columns: Columns, path: Path) -> Curve:
    """The curve in rows of named cells, each with the place where it stands."""
    kept = list(rows)
    names = list(dict.fromkeys(name for _, row in kept for name in row))
    chosen = choose(names, columns, str(path))
    points: list[Point] = []
    for where, row in kept:
        point = to_point(row, chosen, len(points), where)
        if point is not None:
            points.append(point)
    return finish(path, points, chosen.notes(columns))


def _rows(path: Path) -> Iterator[tuple[str, Cells]]:
    text = path.read_text(encoding="utf-8-sig")
    document = _document(text)
    if document is not None:
        yield from ((f"{path}, row {number}", _flat(row)) for number, row in enumerate(document, start=1))
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _flat(_parsed(line, where))


def _document(text: str) -> Sequence[object] | None:
    """The rows of a file that is one JSON document; None if it is lines."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, dict):
        value = next((value[name] for name in _LISTS if isinstance(value.get(name), list)), [value])
    return value if isinstance(value, list) else None


def _parsed(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ConfigError(f"this line is no JSON: {error}", where=where) from None


def _flat(row: object, prefix: str = "") -> Cells:
    if not isinstance(row, dict):
        return {}
    cells: Cells = {}
    for name, value in row.items():
        if isinstance(value, dict) and value.keys() == {_FLOAT}:
            cells[f"{prefix}{name}"] = str(value[_FLOAT])
        elif isinstance(value, dict):
            cells |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float | str) or value is None:
            cells[f"{prefix}{name}"] = value
    return cells
