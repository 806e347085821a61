"""A training curve as it was logged, whatever it was logged by; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from stormsail.workers.detect.rules.row import Row

_STRIDES = 9  # steps between rows are the median of so many
_BEGINNING_ROWS = 50  # a log whose first step is further on begins in the middle of a run
_SAME_LOSS = 0.1  # of the first loss: two seeds of one model begin closer together than that
_OUT_OF_ORDER = 0.05  # of the rows: no run is restarted that often


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
    starts = set(run_starts(points))
    last: int | None = None
    for index, point in enumerate(points):
        restart = restarted if last is None else point.step < last and index not in starts
        if last is not None and point.step > last:
            gaps = [*gaps[-_STRIDES + 1 :], point.step - last]
        yield Row(point.step, point.loss, point.grad_norm, median_low(gaps) if gaps else 1, restart)
        last = point.step


def run_starts(points: Sequence[Point]) -> list[int]:
    """Where another run begins in the same log: its step and its loss are about those of the first row again.

    A restart from a checkpoint also goes back, but its loss stays down. Where the loss has not come down yet, and in a
    log that begins in the middle of a run, the two look alike: it is taken as a restart.
    """
    if not points:
        return []
    stride = median_low(_gaps(points[: _STRIDES + 1]) or [1])
    first = points[0]
    if first.step > _BEGINNING_ROWS * stride or not math.isfinite(first.loss):
        return []
    margin = _SAME_LOSS * abs(first.loss)
    starts: list[int] = []
    lowest = first.loss
    for index, (before, after) in enumerate(pairwise(points), start=1):
        again = after.step < before.step and abs(after.step - first.step) <= stride
        if again and abs(after.loss - first.loss) <= margin < first.loss - lowest:
            starts.append(index)
            lowest = after.loss
        elif after.loss < lowest:
            lowest = after.loss
    return starts


def is_beginning(first: Row, row: Row) -> bool:
    """Whether a row is again at the first step of a log that begins where its run does: steps are counted anew."""
    return first.step <= _BEGINNING_ROWS * first.stride and abs(row.step - first.step) <= first.stride


def in_order(points: Sequence[Point]) -> Sequence[Point]:
    """The points by step if their order cannot be that of time, as in a table with the newest row first; else as given.

    A run that was restarted goes back now and then, and one that counts its steps anew in each epoch always to the
    first; neither is out of order.
    """
    backs = [after.step for before, after in pairwise(points) if after.step < before.step]
    if len(backs) <= max(1.0, _OUT_OF_ORDER * len(points)):
        return points
    stride = median_low(_gaps(points) or [1])
    if all(abs(step - points[0].step) <= stride for step in backs):
        return points
    return sorted(points, key=lambda point: point.step)


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
