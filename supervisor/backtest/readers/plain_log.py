"""Reads a curve from what trainers print: nanoGPT, build-nanogpt, llm.c, HF Trainer, Megatron and their like.

The form is found by trying: the one that reads the most lines wins. All other lines are passed over.
"""

from __future__ import annotations

import ast
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from types import MappingProxyType

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.readers.table import finish
from stormsail.supervisor.backtest.readers.text import read_text

_STEP_DIGITS = 18  # more are no step but a damaged line
_N = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"

# What launchers put before each line: "[rank0]: ", "[default7]:", "0: ".
_FROM = r"^(?:\[[^\]]*\]:?\s*|\d+:\s*)*"

# iter 100: loss 3.2154, time 123.45ms, mfu 12.3%
_NANOGPT = re.compile(rf"{_FROM}iter (\d+): loss {_N},", re.IGNORECASE)
# 100 train 3.215400        (build-nanogpt's log file; a norm may follow: "lr 1e-4 norm 0.3")
_BUILD_FILE = re.compile(rf"{_FROM}(\d+) train {_N}(?:.*\bnorm:? {_N})?\s*$", re.IGNORECASE)
# step   100 | loss: 3.215400 | lr 6.0000e-04 | norm: 0.3123 | dt: 340.2ms
_BUILD_SCREEN = re.compile(rf"{_FROM}step\s+(\d+)\s*\| loss:? {_N}(?:.*\bnorm:?\s+{_N})?", re.IGNORECASE)
# step  100/19560 | loss 3.215400 (+0.12z)| norm 0.3123 (-0.40z)| lr 6.00e-04 | ...
_LLMC = re.compile(rf"{_FROM}step\s+(\d+)/\d+\s*\|\s*(?:train )?loss\s+{_N}(?:.*?\bnorm\s+{_N})?", re.IGNORECASE)
# s:100 trl:3.2154          (llm.c's main.log; evaluation rows have "tel:" instead)
_LLMC_FILE = re.compile(rf"{_FROM}s:(\d+) trl:{_N}(?:.*\bnorm:{_N})?", re.IGNORECASE)
#  iteration      100/  500000 | ... | lm loss: 3.215400E+00 | ... | grad norm: 0.312 | ...
_MEGATRON = re.compile(
    rf"iteration\s+(\d+)/\s*\d+\s*\|.*?\b(?:lm |total )?loss:\s*{_N}(?:.*?\bgrad norm:\s*{_N})?", re.IGNORECASE
)
# Where no update of a row's iterations was applied, Megatron prints no loss, only how many were skipped or NaN.
_MEGATRON_ROW = re.compile(r"iteration\s+(\d+)/\s*\d+\s*\|", re.IGNORECASE)
_MEGATRON_NORM = re.compile(rf"\bgrad norm:\s*{_N}", re.IGNORECASE)
_MEGATRON_SKIPPED = re.compile(r"number of skipped iterations:\s*(\d+)", re.IGNORECASE)
_MEGATRON_NAN = re.compile(r"number of nan iterations:\s*(\d+)", re.IGNORECASE)
_DICT = re.compile(r"\{[^{}]*'loss'[^{}]*\}")

_LOST = (("skipped", _MEGATRON_SKIPPED), ("NaN", _MEGATRON_NAN))

_TRAINER = "HF Trainer"

Read = Callable[[str, int], Point | None]


def _by(pattern: re.Pattern[str]) -> Read:
    def read(line: str, _: int) -> Point | None:
        match = pattern.search(line)
        if match is None or len(match[1]) > _STEP_DIGITS:
            return None
        norm = match[3] if pattern.groups > 2 else None  # noqa: PLR2004 - step, loss, norm
        return Point(int(match[1]), float(match[2]), None if norm is None else float(norm))

    return read


_with_loss = _by(_MEGATRON)


def _megatron(line: str, index: int) -> Point | None:
    """A row of Megatron; one without a loss is NaN if it counts NaN iterations, or has skipped none and no finite norm."""
    point = _with_loss(line, index)
    row = _MEGATRON_ROW.search(line)
    if point is not None or row is None:
        return point
    found = _MEGATRON_NORM.search(line)
    norm = None if found is None else float(found[1])
    applied_no_number = norm is not None and not math.isfinite(norm) and not _counted(_MEGATRON_SKIPPED, line)
    return Point(int(row[1]), math.nan, norm) if _counted(_MEGATRON_NAN, line) or applied_no_number else None


def _counted(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return 0 if match is None else int(match[1])


def _trainer_row(line: str) -> Mapping[str, object] | None:
    """What is in {'loss': 2.3, 'grad_norm': 0.4, 'learning_rate': 1e-4, 'epoch': 0.1}; None in any other line."""
    match = _DICT.search(line)
    if match is None:
        return None
    words = re.sub(r"(?<=[ :])(-?(?:nan|inf))(?=[,}])", r"'\1'", match[0])
    try:
        row = ast.literal_eval(words)
    except (ValueError, SyntaxError, TypeError):
        return None
    return row if isinstance(row, dict) else None


def _trainer_dict(line: str, index: int) -> Point | None:
    """A row of the Hugging Face Trainer; most carry no step."""
    row = _trainer_row(line)
    if row is None:
        return None
    norm = row.get("grad_norm")
    try:
        return Point(int(_float(row.get("step", index))), _float(row["loss"]), None if norm is None else _float(norm))
    except (ValueError, TypeError, OverflowError):
        return None


def _float(value: object) -> float:
    """A number, or its text, as a float. Raises `ValueError` or `TypeError`."""
    if not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} is no number")
    return float(value)


FORMS: Mapping[str, Read] = MappingProxyType(
    {
        "nanoGPT": _by(_NANOGPT),
        "build-nanogpt (file)": _by(_BUILD_FILE),
        "build-nanogpt": _by(_BUILD_SCREEN),
        "llm.c": _by(_LLMC),
        "llm.c (file)": _by(_LLMC_FILE),
        "Megatron": _megatron,
        _TRAINER: _trainer_dict,
    }
)
"""Known forms; each reads a line, given how many rows came before."""


def read_plain_log(path: Path, columns: Columns) -> Curve:
    """Read what a trainer printed.

    Raises:
        ConfigError: No known form reads a single line, or columns were asked for, which a log does not have.
    """
    if columns != Columns():
        raise ConfigError("a plain log has no columns to choose", where=str(path))
    lines = read_text(path, errors="replace").replace("\r", "\n").splitlines()
    best: list[Point] = []
    form = ""
    for name, read in FORMS.items():
        points: list[Point] = []
        for line in lines:
            point = read(line, len(points))
            if point is not None:
                points.append(point)
        if len(points) > len(best):
            best, form = points, name
    if not best:
        raise ConfigError(
            "no line is in a form that is known",
            where=str(path),
            todo=f"known are {', '.join(FORMS)}, CSV, JSON lines and TensorBoard event files",
        )
    notes = (f"read as a log of {form}", *_notes(form, lines, best))
    if form == _TRAINER and _is_counted(best):
        best = _by_epoch(best, [_epoch(line) for line in lines if _trainer_dict(line, 0) is not None])
    return finish(path, best, notes, by_step=_interleaved(best))


def _interleaved(points: Sequence[Point]) -> bool:
    """Whether steps only ever go back by a row or two: ranks that print into one log, not restarts."""
    moves = [after.step - before.step for before, after in pairwise(points)]
    stride = median_low([move for move in moves if move > 0] or [1])
    return min(moves, default=0) >= -2 * stride


def _notes(form: str, lines: Sequence[str], points: Sequence[Point]) -> list[str]:
    """What a reader should know of a log in this form."""
    if form == "Megatron":
        lost = {what: sum(_counted(pattern, line) for line in lines) for what, pattern in _LOST}
        return [f"its rows count {count} {what} iterations" for what, count in lost.items() if count]
    if form == _TRAINER and _is_counted(points):
        return ["its rows carry no step: they are counted from 0, anew where the epoch goes back"]
    return []


def _is_counted(points: Sequence[Point]) -> bool:
    return all(point.step == index for index, point in enumerate(points))


def _epoch(line: str) -> float | None:
    """Which part of its passes over the data a row says it has done; None if it says nothing."""
    try:
        epoch = _float((_trainer_row(line) or {}).get("epoch"))
    except (ValueError, TypeError):
        return None
    return epoch if math.isfinite(epoch) else None


def _by_epoch(points: Sequence[Point], epochs: Sequence[float | None]) -> list[Point]:
    """The points counted by row; where the epoch goes back, from the row that had that epoch before."""
    line: list[float] = []  # epochs of the rows that count, rising
    counted = []
    for point, epoch in zip(points, epochs, strict=True):
        at = epoch if epoch is not None else line[-1] if line else 0.0
        if line and at < line[-1]:
            del line[bisect_left(line, at) :]
        counted.append(replace(point, step=len(line)))
        line.append(at)
    return counted
