"""From what a person names on the command line to curves: files by their kind, a folder as the curves in it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns, choose
from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.labels import COLUMNS, Label, parse_labels
from stormsail.supervisor.backtest.readers import csv_file, jsonl_file, mlflow_run, plain_log, tensorboard_file
from stormsail.supervisor.backtest.readers.text import ending, read_text

_TABLES = (".csv", ".tsv")
_LINES = (".jsonl", ".ndjson", ".json")
_LOGS = (".log", ".txt", ".out", ".err")
_EVENTS = "tfevents"


@dataclass(slots=True)
class Found:
    """What was read.

    Attributes:
        curves: In the order in which they were named; those of a folder by name.
        left_out: Files of a folder that hold no curve, each with the reason.
        unread: What was named itself and cannot be read, each with the reason.
    """

    curves: list[Curve] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read_curves(names: Sequence[str], columns: Columns, *, tracking_uri: str | None = None) -> Found:
    """Read everything that was named; of several names one that cannot be read is left out.

    Raises:
        ConfigError: Nothing that was named can be read.
        TryLaterError: A tracking server does not answer.
    """
    found = Found()
    errors: list[ConfigError] = []
    for name in names:
        try:
            if name.startswith(mlflow_run.PREFIX):
                found.curves.append(mlflow_run.read_mlflow(name, columns, tracking_uri=tracking_uri))
            elif Path(name).is_dir():
                _read_folder(Path(name), columns, found)
            else:
                found.curves.append(_read_path(Path(name), columns))
        except ConfigError as error:
            errors.append(error)
    found.unread = [_reason(error, "") for error in errors]
    if len(errors) == 1 and not found.curves:
        raise errors[0]
    if not found.curves:
        raise ConfigError("nothing that was named can be read", where="backtest", todo="\n".join(found.unread))
    return found


def read_labels(path: Path) -> tuple[Label, ...]:
    """Read a file of labels. Raises `ConfigError`."""
    return parse_labels(read_text(path), str(path))


def is_labels(path: Path) -> bool:
    """Whether a table holds labels rather than a curve, by its header."""
    if ending(path) not in _TABLES:
        return False
    try:
        header = next(csv.reader([read_text(path, errors="replace").partition("\n")[0]]), [])
    except csv.Error:
        return False
    return set(COLUMNS) <= set(header)


def _read_path(path: Path, columns: Columns) -> Curve:
    if not path.is_file():
        raise ConfigError("there is no such file", where=str(path), todo="name a file, a folder, or mlflow:RUN_ID")
    if is_labels(path):
        raise ConfigError("this is a file of labels, not a curve", where=str(path), todo=f"give it as --labels {path}")
    return _read_file(path, columns)


def _read_file(path: Path, columns: Columns) -> Curve:
    try:
        return _read_kind(path, columns)
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", where=str(path)) from error


def _read_kind(path: Path, columns: Columns) -> Curve:
    if _EVENTS in path.name:
        return tensorboard_file.read_tensorboard([path], columns)
    if ending(path) in _TABLES:
        return csv_file.read_csv(path, columns)
    if ending(path) in _LINES:
        return jsonl_file.read_jsonl(path, columns)
    try:
        return plain_log.read_plain_log(path, columns)
    except ConfigError:
        lines = _lines(path)
        if sum(line.lstrip().startswith("{") for line in lines) > len(lines) // 2:
            return jsonl_file.read_jsonl(path, columns)
        if _is_table(lines, columns):
            return csv_file.read_csv(path, columns)
        raise


def _lines(path: Path) -> list[str]:
    """The lines that are not blank; one empty line if there are none."""
    return [line for line in read_text(path, errors="replace").splitlines() if line.strip()] or [""]


def _is_table(lines: Sequence[str], columns: Columns) -> bool:
    """Whether these are the lines of a table with a loss in it, whatever the file is called."""
    separator = csv_file.separator_of(lines[0])
    names = lines[0].split(separator)
    try:
        choose(names, columns, "")
    except ConfigError:
        return False
    return len(names) > 1 and {len(line.split(separator)) for line in lines[1:2]} == {len(names)}


def _read_folder(folder: Path, columns: Columns, found: Found) -> None:
    """Every curve in a folder, by name; event files beside each other are one run.

    Where it holds none itself, each of its own folders is a run, and gives its name to the curve.
    """
    left_out: list[str] = []
    curves = _curves_in(folder, columns, left_out)
    runs = [] if curves else sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    for run in runs:
        inside = _curves_in(run, columns, left_out)
        for curve in inside:
            curves.append(replace(curve, name=run.name if len(inside) == 1 else f"{run.name}/{curve.name}"))
    if not curves:
        known = ", ".join((*_TABLES, *_LINES, *_LOGS))
        looked = f"looked for {known} and event files, in it and in the {len(runs)} folders in it"
        raise ConfigError("there is no curve in this folder", where=str(folder), todo="\n".join([looked, *left_out]))
    found.curves += curves
    found.left_out += left_out


def _curves_in(folder: Path, columns: Columns, left_out: list[str]) -> list[Curve]:
    """The curves of one folder, its own folders left alone; what holds none is told in `left_out`."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    events = [path for path in files if _EVENTS in path.name]
    others = [path for path in files if path not in events and ending(path) in (*_TABLES, *_LINES, *_LOGS)]
    curves: list[Curve] = []
    for path in others:
        try:
            if not is_labels(path):
                curves.append(_read_file(path, columns))
        except ConfigError as error:
            left_out.append(_reason(error, path))
    if events:
        try:
            curves.append(tensorboard_file.read_tensorboard(events, columns))
        except ConfigError as error:
            left_out.append(_reason(error, folder))
    return curves


def _reason(error: ConfigError, path: Path | str) -> str:
    return f"{error.where or path}: {error.what}"
