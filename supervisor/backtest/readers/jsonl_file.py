"""Reads a curve from JSON lines, as most trackers export them; nested objects are taken apart.

A trainer that logs training and evaluation into one file gives rows without a loss: they are passed over. A whole
JSON document is read too: a list of rows, or a trainer's state with its `log_history`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns, choose
from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.readers.table import CUT_OFF, Table
from stormsail.supervisor.backtest.readers.text import read_text

Cells = dict[str, object]
_FLOAT = "$float"  # how Stormsail's own series say nan and inf
_LISTS = ("log_history", "history", "rows")


def read_jsonl(path: Path, columns: Columns) -> Curve:
    """Read one row per line, or one document.

    Raises:
        ConfigError: More than half of the rows cannot be read, or nothing looks like a loss.
    """
    text = read_text(path)
    document = _document(text)
    if document is not None:
        return _curve([(f"{path}, row {number}", row) for number, row in enumerate(document, start=1)], columns, path)
    lines = [(f"{path}, line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return _curve([(where, _parsed(line)) for where, line in lines], columns, path)


def _curve(rows: Sequence[tuple[str, object]], columns: Columns, path: Path) -> Curve:
    """The curve in parsed rows, each with the place where it stands."""
    cells = [(where, row if isinstance(row, ValueError) else _flat(row)) for where, row in rows]
    names = dict.fromkeys(name for _, row in cells if isinstance(row, dict) for name in row)
    broken = next(((where, row) for where, row in cells if isinstance(row, ValueError)), None)
    if not names and broken is not None:
        raise ConfigError(f"this line is no JSON: {broken[1]}", where=broken[0])
    table = Table(choose(list(names), columns, str(path)), columns, path)
    for index, (where, row) in enumerate(cells):
        if isinstance(row, dict):
            table.add(row, where)
        elif index == len(cells) - 1:
            table.note(CUT_OFF)
        else:
            table.leave_out(f"this line is no JSON: {row}", where)
    return table.curve()


def _document(text: str) -> Sequence[object] | None:
    """The rows of a file that is one JSON document; None if it is lines."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = next((value[name] for name in _LISTS if isinstance(value.get(name), list)), [value])
    return value if isinstance(value, list) else None


def _parsed(line: str) -> object:
    """What a line says, or why it says nothing. A machine that was lost leaves zeros before or behind it."""
    try:
        return json.loads(line.strip("\0 \r\t"))
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("it is nested too deeply")


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
