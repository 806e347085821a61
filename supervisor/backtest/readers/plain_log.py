"""Reads a curve from what trainers print: nanoGPT, build-nanogpt, llm.c, HF Trainer, Megatron and their like.

The form is found by trying: the one that reads the most lines wins. All other lines are passed over.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.readers.csv_file import finish

_N = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"

# iter 100: loss 3.2154, time 123.45ms, mfu 12.3%
_NANOGPT = re.compile(rf"^iter (\d+): loss {_N},", re.IGNORECASE)
# 100 train 3.215400        (build-nanogpt's log file; a norm may follow: "lr 1e-4 norm 0.3")
_BUILD_FILE = re.compile(rf"^(\d+) train {_N}(?:.*\bnorm:? {_N})?\s*$", re.IGNORECASE)
# step   100 | loss: 3.215400 | lr 6.0000e-04 | norm: 0.3123 | dt: 340.2ms
_BUILD_SCREEN = re.compile(rf"^step\s+(\d+)\s*\| loss:? {_N}(?:.*\bnorm:?\s+{_N})?", re.IGNORECASE)
# step  100/19560 | loss 3.215400 (+0.12z)| norm 0.3123 (-0.40z)| lr 6.00e-04 | ...
_LLMC = re.compile(rf"^step\s+(\d+)/\d+\s*\|\s*(?:train )?loss\s+{_N}(?:.*?\bnorm\s+{_N})?", re.IGNORECASE)
# s:100 trl:3.2154          (llm.c's main.log; evaluation rows have "tel:" instead)
_LLMC_FILE = re.compile(rf"^s:(\d+) trl:{_N}(?:.*\bnorm:{_N})?", re.IGNORECASE)
#  iteration      100/  500000 | ... | lm loss: 3.215400E+00 | ... | grad norm: 0.312 | ...
_MEGATRON = re.compile(
    rf"iteration\s+(\d+)/\s*\d+\s*\|.*?\b(?:lm |total )?loss:\s*{_N}(?:.*?\bgrad norm:\s*{_N})?", re.IGNORECASE
)
_DICT = re.compile(r"\{[^{}]*'loss'[^{}]*\}")

Read = Callable[[str, int], Point | None]


def _by(pattern: re.Pattern[str]) -> Read:
    def read(line: str, _: int) -> Point | None:
        match = pattern.search(line)
        if match is None:
            return None
        norm = match[3] if pattern.groups > 2 else None  # noqa: PLR2004 - step, loss, norm
        return Point(int(match[1]), float(match[2]), None if norm is None else float(norm))

    return read


def _trainer_dict(line: str, index: int) -> Point | None:
    """{'loss': 2.3, 'grad_norm': 0.4, 'learning_rate': 1e-4, 'epoch': 0.1}: rows carry no step."""
    match = _DICT.search(line)
    if match is None:
        return None
    words = re.sub(r"(?<=[ :])(-?(?:nan|inf))(?=[,}])", r"'\1'", match[0])
    try:
        row = ast.literal_eval(words)
        norm = row.get("grad_norm")
        return Point(int(row.get("step", index)), float(row["loss"]), None if norm is None else float(norm))
    except (ValueError, SyntaxError, TypeError, AttributeError):
        return None


FORMS: Mapping[str, Read] = MappingProxyType(
    {
        "nanoGPT": _by(_NANOGPT),
        "build-nanogpt (file)": _by(_BUILD_FILE),
        "build-nanogpt": _by(_BUILD_SCREEN),
        "llm.c": _by(_LLMC),
        "llm.c (file)": _by(_LLMC_FILE),
        "Megatron": _by(_MEGATRON),
        "HF Trainer": _trainer_dict,
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
    lines = path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
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
    notes: tuple[str, ...] = (f"read as a log of {form}",)
    if form == "HF Trainer" and all(point.step == index for index, point in enumerate(best)):
        notes = (*notes, "its rows carry no step: they are counted from 0; trainer_state.json has the steps")
    return finish(path, best, notes)
