"""Reads a curve from CSV or TSV: any column order, names guessed."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Chosen, Columns, choose, number
from stormsail.supervisor.backtest.curve import Curve, Point, merge_repeats


def read_csv(path: Path, columns: Columns) -> Curve:
    """Read a table with a header line.

    Raises:
        ConfigError: It has no such columns, or a cell is no number.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        separator = max(",;\t", key=header.count)
        table = csv.DictReader(file, delimiter=separator)
        names = list(table.fieldnames or ())
        chosen = choose(names, columns, str(path))
        points: list[Point] = []
        for line in table:
            point = to_point(line, chosen, len(points), f"{path}, line {table.line_num}")
            if point is not None:
                points.append(point)
    return finish(path, points, chosen.notes(columns))


def to_point(line: Mapping[str, object], chosen: Chosen, index: int, where: str) -> Point | None:
    """One row of named cells; None if it has no loss. Raises `ConfigError` for a cell that is no number."""
    try:
        loss = number(line.get(chosen.loss))
        step = float(index) if chosen.step is None else number(line.get(chosen.step))
        norm = None if chosen.norm is None else number(line.get(chosen.norm))
    except ValueError as error:
        raise ConfigError(f"a cell is no number: {error}", where=where) from None
    if loss is None:
        return None
    if step is None or not math.isfinite(step):
        raise ConfigError("a row with a loss has no step", where=where)
    return Point(int(step), loss, norm)


def finish(path: Path | str, points: list[Point], notes: tuple[str, ...] = ()) -> Curve:
    """The curve of these points. Raises `ConfigError` if there is none."""
    if not points:
        raise ConfigError("there is no row with a loss in it", where=str(path))
    kept, left_out = merge_repeats(points)
    if left_out:
        notes = (*notes, f"{left_out} rows repeat the step of the row before; the last of them counts")
    name = path.stem if isinstance(path, Path) else path
    return Curve(name, str(path), tuple(kept), notes)
