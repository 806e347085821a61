"""When a trial may be ended early, and where it reports so that this can be decided; pure.

Instability comes late: the danger of a warm-up lasts about three times its length, and successive halving favours
whatever starts fast, which are the high learning rates that fail later. So nothing is ended before three warm-ups or
40 % of the run, and afterwards only for divergence, never for being slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from stormsail.tuning.settings import SweepConfig

WHOLE = 100
"""Progress is counted in hundredths of a trial's own steps, since proxies differ in length."""

REDUCTION = 2
"""Each rung lies this much further along; half of the trials at a rung may pass it even if all of them diverged."""

_LEAST_SHARE = 0.4
_WARMUPS = 3


def grace_percent(sweep: SweepConfig) -> int:
    """The progress before which no trial of a sweep may be ended, in hundredths.

    One for all of its trials, so that what a rung says of one does not depend on which others run beside it.
    """
    share = max(_LEAST_SHARE, _WARMUPS * max(*sweep.space.warmup, sweep.control.warmup))
    return min(WHOLE, math.ceil(round(share * WHOLE, 6)))


def rungs(grace: int) -> tuple[int, ...]:
    """The progress at which trials report, in hundredths: the grace and its doublings below the end."""
    found = []
    rung = grace
    while rung < WHOLE:
        found.append(rung)
        rung *= REDUCTION
    return tuple(found)


def rung_reached(step: int, steps: int, marks: Iterable[int]) -> int | None:
    """The rung that the completion of a step reaches for the first time, or None.

    Args:
        step: Steps completed.
        steps: Steps of the whole trial.
        marks: The rungs, ascending.
    """
    before, now = WHOLE * (step - 1) / steps, WHOLE * step / steps
    reached = [mark for mark in marks if before < mark <= now]
    return reached[-1] if reached else None
