"""From rows of named cells to a curve. A bad row costs itself, not the file: yesterday's crash left files like that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Chosen, Columns, number
from stormsail.supervisor.backtest.curve import Curve, Point, in_order, merge_repeats, run_starts
from stormsail.supervisor.backtest.readers.text import stem

CUT_OFF = "ends in the middle of a line: the job was killed there"
"""The note of a file whose last line is not whole."""


class Table:
    """Rows of one file, taken one by one.

    Args:
        chosen: Which cells count.
        asked: Columns as they were asked for.
        path: The file.
    """

    def __init__(self, chosen: Chosen, asked: Columns, path: Path) -> None:
        self._chosen = chosen
        self._path = path
        self._notes = list(chosen.notes(asked))
        self._points: list[Point] = []
        self._good = 0
        self._bad: list[ConfigError] = []
        self._without_loss = 0
        self._fractions = 0

    def add(self, cells: Mapping[Any, object], where: str) -> None:
        """Take one row. One without a loss is passed over; one that is wrong is left out and counted."""
        try:
            step, loss, norm = self._numbers(cells)
        except ValueError as error:
            self.leave_out(f"a cell is no number: {error}", where)
            return
        if loss is None:
            self._good += 1
            self._without_loss += norm is not None
        elif step is None or not math.isfinite(step):
            self.leave_out("a row with a loss has no step", where)
        else:
            self._good += 1
            self._fractions += step != int(step)
            self._points.append(Point(int(step), loss, norm))

    def leave_out(self, what: str, where: str) -> None:
        """Count a row that cannot be read."""
        self._bad.append(ConfigError(what, where=where))

    def note(self, text: str) -> None:
        """Say something about the file."""
        self._notes.append(text)

    def curve(self) -> Curve:
        """The curve of these rows. Raises `ConfigError` if more than half of them are bad, or none has a loss."""
        if len(self._bad) > self._good:
            raise self._bad[0]
        if self._bad:
            first = self._bad[0]
            self.note(
                f"{len(self._bad)} rows cannot be read and are left out, the first at {first.where}: {first.what}"
            )
        if self._without_loss:
            self.note(f"{self._without_loss} rows have a gradient norm and no loss: they are passed over")
        if self._fractions:
            self.note(f"{self._fractions} steps are fractions (epochs?) and count as the whole number below")
        return finish(self._path, self._points, tuple(self._notes), by_step=self._chosen.step is not None)

    def _numbers(self, cells: Mapping[Any, object]) -> tuple[float | None, float | None, float | None]:
        chosen = self._chosen
        step = float(len(self._points)) if chosen.step is None else number(cells.get(chosen.step))
        norm = None if chosen.norm is None else number(cells.get(chosen.norm))
        return step, number(cells.get(chosen.loss)), norm


def finish(path: Path | str, points: list[Point], notes: tuple[str, ...] = (), *, by_step: bool = False) -> Curve:
    """The curve of these points.

    Args:
        path: The file, or another name of the source.
        points: As they were read.
        notes: What was said so far.
        by_step: The rows have steps of their own, and their order is not sure to be that of time.

    Raises:
        ConfigError: There is no point.
    """
    if not points:
        raise ConfigError("there is no row with a loss in it", where=str(path))
    ordered = in_order(points) if by_step else points
    if ordered is not points:
        notes = (*notes, "rows were not in order of their steps: sorted")
    kept, left_out = merge_repeats(ordered)
    if left_out:
        notes = (*notes, f"{left_out} rows repeat the step of the row before; the last of them counts")
    for index in run_starts(kept):
        notes = (*notes, f"a second run begins here: step {kept[index].step} after step {kept[index - 1].step}")
    name = stem(path) if isinstance(path, Path) else path
    return Curve(name, str(path), tuple(kept), notes)
