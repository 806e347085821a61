"""Shadow mode on the workers' side: what a verdict that would stop training becomes, and how often it is said; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stormsail.workers.detect.verdict import Verdict, VerdictKind


def softened(verdict: Verdict, *, nonfinite: bool) -> Verdict:
    """The verdict with which training goes on: a gradient that is not finite is still never applied.

    Nothing else is held back, either: an outlier that would be skipped, or clipped to the usual norm, is applied.

    Args:
        verdict: Of this step.
        nonfinite: Whether any gradient, loss, weight or moment of the step is not finite.
    """
    if verdict.kind not in (VerdictKind.INCIDENT, VerdictKind.SKIP):
        return replace(verdict, clip_to=math.inf)
    return replace(verdict, kind=VerdictKind.DROP if nonfinite else VerdictKind.WATCH, clip_to=math.inf)


@dataclass(slots=True)
class Told:
    """Which incident was said last: those that follow closely are the same trouble, since nothing is done about it.

    Attributes:
        quiet_steps: For how many steps after one nothing more is said.
        last: Step of the last one that was seen, or None.
    """

    quiet_steps: int
    last: int | None = None

    def is_news(self, step: int) -> bool:
        """Take note of an incident at this step; returns whether it is to be said."""
        before, self.last = self.last, step
        return before is None or step < before or step - before > self.quiet_steps
