"""An incident as the rows around it show it: where it began, what is calm, and the shapes that trouble takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stormsail.platform.diagnosis import Diagnosis, Sign, Trace, TraceRow
from stormsail.workers.detect.signs import Limits, dead_groups, find_onset, is_finite, limits_of, signs_of

RESTART_STEPS = 3
"""How far behind a restart trouble may begin that comes from it."""
LAYERS_SHOWN = 4
"""Layers that a verdict names at most."""
_EXPLODED = 10.0  # times the calm norm
_VANISHED = 0.4  # of the calm ratio between the first and the last third of the blocks
_LAYER_RATIO = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of an incident.

    Attributes:
        trace: Rows up to it.
        onset: First abnormal step; -1 if no row looks abnormal.
        limits: What is calm.
        ill: Rows from the onset on.
        signs: Every sign that they show.
    """

    trace: Trace
    onset: int
    limits: Limits
    ill: tuple[TraceRow, ...]
    signs: frozenset[Sign]


def open_case(trace: Trace, reported: int | None) -> Case | None:
    """Look at the rows around an incident; None if there is nothing to go by.

    Args:
        trace: Rows up to the incident.
        reported: First abnormal step by the detector that spoke; None if none did.
    """
    onset = find_onset(trace, reported)
    if onset is None:
        limits = limits_of(trace.rows)
        return None if limits is None else Case(trace, -1, limits, (), frozenset())
    limits = limits_of([row for row in trace.rows if row.step < onset])
    ill = tuple(row for row in trace.rows if row.step >= onset)
    if limits is None or not ill:
        return None
    signs = frozenset(sign for row in ill for sign in signs_of(row, limits))
    return Case(trace, onset, limits, ill, signs)


def exploded(case: Case, rows: Sequence[TraceRow]) -> bool:
    """Whether the norm left the calm one by an order of magnitude in most rows from the onset on."""
    ratios = [row.grad_norm / max(case.limits.norm, 1e-30) for row in rows if row.step >= case.onset and is_finite(row)]
    return len(ratios) > 1 and sum(ratio > _EXPLODED for ratio in ratios) * 2 > len(ratios)


def growth(case: Case) -> str:
    """How far the norm left the calm one, in words."""
    worst = max((row.grad_norm for row in case.ill if is_finite(row)), default=0.0)
    return f"the gradient norm rose to {worst / max(case.limits.norm, 1e-30):.0f} x its calm level"


def vanishes(case: Case, rows: Sequence[TraceRow]) -> bool:
    """Whether gradients fade on their way to the first blocks, as they did not before."""
    calm = _fade(case, case.limits.groups)
    seen = [_fade(case, row.groups) for row in (*case.ill, *rows) if row.step > case.onset and is_finite(row)]
    found = sorted(value for value in seen if value is not None)
    return calm is not None and len(found) > 1 and found[1] < _VANISHED * calm


def _fade(case: Case, groups: Sequence[float]) -> float | None:
    """Mean gradient norm of the first third of the numbered layers over that of the last third."""
    blocks = [
        norm
        for name, norm in zip(case.trace.names, groups, strict=False)
        if any(part.isdecimal() for part in name.split("."))
    ]
    third = len(blocks) // 3
    if not third or not sum(blocks[-third:]):
        return None
    return sum(blocks[:third]) / sum(blocks[-third:])


def placed(case: Case, found: Diagnosis) -> Diagnosis:
    """Add where it was."""
    ranks = tuple(sorted({row.bad_rank for row in case.ill if row.bad_rank >= 0}))
    return replace(found, onset=max(found.onset, case.onset), layers=_in_front(case), ranks=ranks)


def _in_front(case: Case) -> tuple[str, ...]:
    """Layer groups whose gradient norm left its calm level most, at the onset and the step after; dead ones first."""
    rows = case.ill[:2]
    if not rows:
        return ()
    dead = {index for row in rows for index in dead_groups(row, case.limits)}
    ratios = [
        (max((row.groups[index] if index < len(row.groups) else 0.0) for row in rows) / max(calm, 1e-30), index)
        for index, calm in enumerate(case.limits.groups)
    ]
    grown = [index for ratio, index in sorted(ratios, reverse=True) if ratio > _LAYER_RATIO and index not in dead]
    return tuple(case.trace.names[index] for index in (*sorted(dead), *grown)[:LAYERS_SHOWN])
