"""What is out of the ordinary in the rows before an incident, and where it began. Pure.

Everything is measured against calm rows of the same run. Loss and norm use the baseline of the live rules; the other
signs are ratios, since what they watch hardly moves in a healthy run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from stormsail.platform.diagnosis import Sign, Trace, TraceRow
from stormsail.workers.detect.baseline import Baseline

TRACE_STEPS = 64
"""Steps that are remembered for a diagnosis."""

MIN_CALM = 12
"""Calm rows without which nothing can be said."""

_Z = 6.0
_LOSS_FLOOR = 0.004  # of the level, as in the spike rule
_LOG_NORM_FLOOR = 0.1
_NORM_RATIO = 3.0
_UPDATE_RATIO = 1.8  # the update's root mean square moves by some per cent in 50 healthy steps
_RATE_RATIO = 1.5
_DEAD_RATIO = 1e-3
_MORE_ZEROS = 0.02
_STRANGE_Z = 3.0
_LOOK_BACK = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What is still calm.

    Attributes:
        level: Median loss of the last calm rows, in nats.
        scatter: One robust standard deviation of it.
        norm: Median gradient norm; `norm_limit` is the highest calm one.
        norm_limit: See there.
        update: Median update RMS; 0 where it is not known.
        rate: Highest learning rate.
        groups: Median gradient norm of each layer group; () where they are not known.
        zero_share: Largest share of gradient elements that are exactly 0; -1 where it is not known.
    """

    level: float
    scatter: float
    norm: float
    norm_limit: float
    update: float
    rate: float
    groups: tuple[float, ...]
    zero_share: float = -1.0

    @property
    def loss(self) -> tuple[float, float]:
        """Lowest and highest calm loss."""
        return self.level - _Z * self.scatter, self.level + _Z * self.scatter


def limits_of(calm: Sequence[TraceRow]) -> Limits | None:
    """Learn what is calm; None if there are too few finite rows."""
    rows = [row for row in calm if is_finite(row)]
    if len(rows) < MIN_CALM:
        return None
    loss, norm = Baseline(), Baseline()
    for row in rows:
        loss = loss.accept(row.loss, TRACE_STEPS)
        norm = norm.accept(math.log(max(row.grad_norm, 1e-30)), TRACE_STEPS)
    scatter = max(loss.scatter, _LOSS_FLOOR * abs(loss.level), 1e-9)
    reach = max(_Z * max(norm.scatter, _LOG_NORM_FLOOR), math.log(_NORM_RATIO))
    updates = [row.update_rms for row in rows if row.update_rms > 0.0]
    return Limits(
        level=loss.level,
        scatter=scatter,
        norm=math.exp(norm.level),
        norm_limit=math.exp(norm.level + reach),
        update=median(updates) if updates else 0.0,
        rate=max(row.lr for row in rows),
        groups=middle_groups(rows),
        zero_share=max(row.zero_share for row in rows),
    )


def middle_groups(rows: Sequence[TraceRow]) -> tuple[float, ...]:
    """Median gradient norm of each layer group over the rows that know them."""
    known = [row.groups for row in rows if row.groups]
    return tuple(median(norms) for norms in zip(*known, strict=True))


def is_finite(row: TraceRow) -> bool:
    """Whether everything in the row is a number."""
    return row.nonfinite == 0 and math.isfinite(row.loss) and math.isfinite(row.grad_norm)


def signs_of(row: TraceRow, limits: Limits) -> frozenset[Sign]:
    """Every way in which a row is out of the ordinary."""
    if not is_finite(row):
        return frozenset({Sign.NONFINITE})
    low, high = limits.loss
    found = {
        Sign.LOSS: row.loss > high,
        Sign.LOSS_LOW: row.loss < low,
        Sign.NORM: row.grad_norm > limits.norm_limit,
        Sign.UPDATE: limits.update > 0.0 and row.update_rms > _UPDATE_RATIO * limits.update,
        Sign.RATE: limits.rate > 0.0 and row.lr > _RATE_RATIO * limits.rate,
        Sign.DEAD: is_dead(row, limits),
    }
    return frozenset(sign for sign, there in found.items() if there)


def is_dead(row: TraceRow, limits: Limits) -> bool:
    """Whether a part of the model has stopped learning: a whole layer group, or many elements at once."""
    zeros = 0.0 <= limits.zero_share < row.zero_share - _MORE_ZEROS
    return zeros or bool(dead_groups(row, limits))


def dead_groups(row: TraceRow, limits: Limits) -> tuple[int, ...]:
    """Layer groups that no gradient reaches any more, while others learn."""
    pairs = enumerate(zip(row.groups, limits.groups, strict=False))
    return tuple(index for index, (now, calm) in pairs if calm > 0.0 and now < _DEAD_RATIO * calm)


def find_onset(trace: Trace, reported: int | None) -> int | None:
    """The first step of the trace that is out of the ordinary.

    Args:
        trace: Rows up to the incident.
        reported: Where a detector puts the onset; None if nobody reported any.

    Returns:
        The step, or None if every row looks calm, or there are too few to tell.
    """
    rows = trace.rows
    half = rows[: len(rows) // 2]
    # What a detector reports late is not calm either.
    calm = half if reported is None else tuple(row for row in rows if row.step < reported - _LOOK_BACK)
    limits = limits_of(calm)
    if limits is None:
        return reported
    begin = half[-1].step if reported is None else reported - _LOOK_BACK
    found = next((row.step for row in rows if row.step >= begin and signs_of(row, limits)), None)
    if found is not None:
        return found
    return _strangest(rows, begin, limits) if reported is None else reported


def _strangest(rows: Sequence[TraceRow], begin: int, limits: Limits) -> int | None:
    """The step whose loss is furthest from calm, where somebody asks though nothing passed a limit."""
    step, apart = max(((row.step, abs(row.loss - limits.level)) for row in rows if row.step >= begin), key=_second)
    return step if apart > _STRANGE_Z * limits.scatter else None


def _second(pair: tuple[int, float]) -> float:
    return pair[1]
