"""Rows of a made-up training curve, and rules fed with them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Any

from stormsail.workers.detect.rules.row import Finding, Row
from stormsail.workers.detect.rules.rule import Rule, Running


def calm(
    rows: int = 200, *, level: float = 3.0, stride: int = 1, norm: float | None = 0.3, start: int = 0
) -> list[Row]:
    """Rows at one level, with the scatter of a healthy run."""
    noise = random.Random(rows)
    return [
        Row(
            start + index * stride,
            level + noise.gauss(0.0, 0.03),
            None if norm is None else norm * math.exp(noise.gauss(0.0, 0.09)),
            stride,
        )
        for index in range(rows)
    ]


def after(rows: list[Row], *values: tuple[float, float | None], restart: bool = False) -> list[Row]:
    """Rows that follow, with these losses and norms."""
    last = rows[-1]
    return [
        Row(last.step + index * last.stride, loss, norm, last.stride, restart and index == 1)
        for index, (loss, norm) in enumerate(values, start=1)
    ]


def findings(rule: Rule[Any], rows: Iterable[Row]) -> dict[int, Finding]:
    """What the rule says, by step."""
    running = Running(rule)
    said = {}
    for row in rows:
        finding = running.observe(row)
        if finding is not None:
            said[row.step] = finding
    return said
