"""A training curve as it was logged, whatever it was logged by; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from stormsail.workers.detect.rules.row import Row

_STRIDES = 9  # steps between rows are the median of so many


@dataclass(frozen=True, slots=True)
class Point:
    """One logged row: its step, its loss in nats, its gradient norm where there is one; either may be non-finite."""

    step: int
    loss: float
    grad_norm: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """One run, or a part of one.

    Attributes:
        name: What labels call it: the file's name without its ending.
        source: Where it was read from, as given.
        points: In the order of the log; a step that goes back is a restart.
        notes: What the reader assumed or left out, as sentences.
    """

    name: str
    source: str
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_norm(self) -> bool:
        """Whether any row has a gradient norm."""
        return any(point.grad_norm is not None for point in self.points)

    @property
    def stride(self) -> int:
        """Steps between two rows, typically; 1 for a single row."""
        gaps = _gaps(self.points)
        return median_low(gaps) if gaps else 1


def rows_of(points: Sequence[Point], *, restarted: bool = False) -> Iterator[Row]:
    """The points as rules take them: with their distance, and with restarts marked.

    Args:
        points: In the order of the log.
        restarted: The first of them is the first after a restart.
    """
    gaps = _gaps(points[: _STRIDES + 1])
    last: int | None = None
    for point in points:
        restart = restarted if last is None else point.step < last
        if last is not None and point.step > last:
            gaps = [*gaps[-_STRIDES + 1 :], point.step - last]
        yield Row(point.step, point.loss, point.grad_norm, median_low(gaps) if gaps else 1, restart)
        last = point.step


def merge_repeats(points: Iterable[Point]) -> tuple[list[Point], int]:
    """Points of which no two in a row have the same step: the last counts; and how many were left out."""
    kept: list[Point] = []
    left_out = 0
    for point in points:
        if kept and kept[-1].step == point.step:
            kept.pop()
            left_out += 1
        kept.append(point)
    return kept, left_out


def _gaps(points: Sequence[Point]) -> list[int]:
    return [after.step - before.step for before, after in pairwise(points) if after.step > before.step]
