"""Reads a curve from CSV or TSV: any column order, names guessed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns, choose
from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.readers.table import CUT_OFF, Table
from stormsail.supervisor.backtest.readers.text import read_text

Cells = Mapping[str | None, Any]
"""Texts by column; None for a cell that is missing, and under None a list of those beyond the header."""

_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+(?:[eE][-+]?\d+)?\s*")


def read_csv(path: Path, columns: Columns) -> Curve:
    """Read a table with a header line.

    Raises:
        ConfigError: It has no such columns, or more than half of its rows cannot be read.
    """
    text, cut_off = _without_zeros(read_text(path))
    separator = separator_of(text.partition("\n")[0])
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        names = list(reader.fieldnames or ())
    except csv.Error as error:
        raise ConfigError(f"the header cannot be read: {error}", where=str(path)) from None
    table = Table(choose(names, columns, str(path)), columns, path)
    if cut_off:
        table.note(CUT_OFF)
    last = text.count("\n") + 1  # a text that ends with a whole line has nothing on this one
    too_long = 0
    for line, cells in _lines(reader):
        where = f"{path}, line {line}"
        if isinstance(cells, csv.Error):
            table.leave_out(str(cells), where)
        elif line == last and cells[names[-1]] is None:
            table.note(CUT_OFF)
        elif any(cells[name] != name for name in names):  # a job that was restarted wrote its header again
            table.add(_with_points(cells) if separator == ";" else cells, where)
            too_long += any(cells.get(None, ()))
    if too_long:
        table.note(f"{too_long} rows have more cells than the header: are there decimal commas in them?")
    return table.curve()


def _without_zeros(text: str) -> tuple[str, bool]:
    """The whole lines before the zeros that a lost machine left at the end, and whether it did."""
    bare = text.rstrip("\0")
    return (text, False) if bare == text else (bare[: bare.rfind("\n") + 1], True)


def separator_of(header: str) -> str:
    """What stands between the cells, by the first line."""
    return max(",;\t", key=header.count)


def _lines(reader: csv.DictReader[str]) -> Iterator[tuple[int, Cells | csv.Error]]:
    """Each row with its line; a row that the reader refuses as the error."""
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num, error
        else:
            yield reader.line_num, cells


def _with_points(cells: Cells) -> Cells:
    """Numbers with a decimal comma, as spreadsheets write them between semicolons, with a point instead."""
    return {
        name: cell.replace(",", ".") if isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell) else cell
        for name, cell in cells.items()
    }
