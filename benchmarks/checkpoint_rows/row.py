"""One line of the benchmark, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Row: TypeAlias = dict[str, object]
Bars: TypeAlias = tuple[float | None, float | None]


def make_row(
    figure: str,
    unit: str,
    value: float,
    reference: float | None,
    *,
    against: str = "",
    bars: Bars = (None, None),
    lower: bool = True,
    by_ratio: bool = False,
) -> Row:
    """A row with its verdict.

    Args:
        figure: What is measured.
        unit: Of `value` and `reference`.
        value: Ours.
        reference: The other's, on the same work in the same run.
        against: Who the other is.
        bars: What must hold, and what is aimed at.
        lower: Whether less is better.
        by_ratio: Whether the bars are for `value / reference` instead of `value`.
    """
    ratio = value / reference if reference else None
    judged = ratio if by_ratio else value
    bar, aim = bars
    passed = None if bar is None or judged is None else (judged <= bar if lower else judged >= bar)
    return {
        "figure": figure,
        "unit": unit,
        "ours": value,
        "reference": reference,
        "reference_name": against,
        "ratio": ratio,
        "bar": bar,
        "aim": aim,
        "pass": passed,
    }


def table(rows: Sequence[Row]) -> str:
    """The rows for people."""
    head = ["figure", "unit", "ours", "reference", "ratio", "bar", "aim", "pass", "against"]
    keys = ["figure", "unit", "ours", "reference", "ratio", "bar", "aim", "pass", "reference_name"]
    lines = [head, *([_cell(row[key]) for key in keys] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines]
    text.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(text)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3f}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004 - digits that mean something
    return "-" if value is None else str(value)
