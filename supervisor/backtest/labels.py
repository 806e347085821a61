"""What a person says happened in a curve: intervals, and what should have been done. Pure."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from stormsail.platform.errors import ConfigError

COLUMNS = ("series", "start", "end", "action_expected")
"""Columns that make a file one of labels."""

EVENTS = frozenset({"rollback", "fix_resume", "stop_now"})
"""Actions that an incident must lead to."""

CALM = "none"
"""The action of an interval that must stay without incident."""


@dataclass(frozen=True, slots=True)
class Label:
    """One interval.

    Attributes:
        series: The curve's name.
        start: First step.
        end: Last step.
        kind: What it is, in the labeller's words.
        action: What was to be done: one of `EVENTS`, `CALM`, or anything else for "either is fine".
    """

    series: str
    start: int
    end: int
    kind: str
    action: str

    @property
    def is_event(self) -> bool:
        """Whether an incident is expected."""
        return self.action in EVENTS


def parse_labels(text: str, where: str) -> tuple[Label, ...]:
    """Read a labels file.

    Args:
        text: CSV with at least `COLUMNS`; a `kind` column is read too.
        where: The file, for messages.

    Raises:
        ConfigError: A column is missing, or a line is wrong.
    """
    reader = csv.DictReader(io.StringIO(text))
    try:
        lines = list(reader)
    except csv.Error as error:
        raise ConfigError(f"this is no CSV: {error}", where=f"{where}, line {reader.line_num}") from None
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(
            f"this is no file of labels: it has no column {', '.join(missing)}",
            where=where,
            todo=f"the columns are {', '.join(COLUMNS)} and, if you like, kind",
        )
    return tuple(_label(line, f"{where}, line {number}") for number, line in enumerate(lines, start=2))


def _label(line: dict[str, str], where: str) -> Label:
    try:
        start, end = int(line["start"]), int(line["end"] or line["start"])
    except (TypeError, ValueError):
        raise ConfigError(
            f"start and end must be whole steps, found {line['start']!r} and {line['end']!r}", where=where
        ) from None
    if end < start or not line["series"]:
        raise ConfigError("a label needs a series, and an end that is not before its start", where=where)
    return Label(line["series"], start, end, line.get("kind") or "", line["action_expected"] or CALM)
