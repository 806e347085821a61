"""Where the wall time went: every second is put into one class, once; pure.

Spans of several classes may overlap (a step that ran while a fault was not noticed yet). The class that stands first
in `CLASSES` wins; what no span covers is a stall.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CLASSES = ("productive", "replay", "evaluate", "idle", "load", "decide", "detect", "restart", "stall")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, from start to end in seconds since the epoch, with its class."""

    kind: str
    start_s: float
    end_s: float


def classify(spans: Iterable[Span], start_s: float, end_s: float) -> dict[str, float]:
    """Return the seconds between start and end by class; they add up to the whole."""
    edges: list[tuple[float, int, str]] = []
    for span in [*spans, Span("stall", start_s, end_s)]:
        first, last = max(span.start_s, start_s), min(span.end_s, end_s)
        if last > first:
            edges += [(first, 1, span.kind), (last, -1, span.kind)]
    totals = dict.fromkeys(CLASSES, 0.0)
    open_spans = dict.fromkeys(CLASSES, 0)
    before_s = start_s
    for at_s, change, kind in sorted(edges):
        if at_s > before_s:
            winner = next(name for name in CLASSES if open_spans[name])
            totals[winner] += at_s - before_s
            before_s = at_s
        open_spans[kind] += change
    return totals
