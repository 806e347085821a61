"""The learning rate of a step: the schedule times what the ladder decided; pure.

All ranks compute it for themselves and agree, because it depends on nothing but the step, the configuration and
the journalled LR events of the live line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stormsail.platform.messages import LrEvent


def scheduled_lr(step: int, *, peak: float, warmup_steps: int, total_steps: int, min_ratio: float) -> float:
    """Return the planned learning rate of a step, before the ladder's factor.

    Args:
        step: Global batch (0-based). The warm-up counts from 1, so that step 0 already learns.
        peak: Learning rate at the end of the warm-up.
        warmup_steps: Steps of linear warm-up; 0 is none.
        total_steps: Step at which the cosine arrives at its end; beyond it the rate stays there.
        min_ratio: Last learning rate as a share of the peak.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    decay_steps = max(1, total_steps - warmup_steps)
    progress = min(1.0, (step - warmup_steps) / decay_steps)
    return peak * (min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def lr_factor(step: int, events: Sequence[LrEvent], *, floor: float, ramp_steps: int) -> float:
    """Return the ladder's factor on the schedule at a step: exactly 1.0 where no event is in force.

    Events multiply. Each applies from its step on, is held until its `released_step`, and then returns to 1 in a
    straight line over `ramp_steps`.

    Args:
        step: Global batch (0-based).
        events: All events of the live line, in any order.
        floor: The product never goes below it.
        ramp_steps: Steps of the way back to 1 (at least 1).
    """
    product = math.prod(_event_factor(step, event, ramp_steps) for event in events)
    return max(floor, float(product))


def learning_rate(
    step: int,
    events: Sequence[LrEvent],
    *,
    peak: float,
    warmup_steps: int,
    total_steps: int,
    min_ratio: float,
    floor: float,
    ramp_steps: int,
) -> float:
    """Return the learning rate that the optimizer must use at a step: `scheduled_lr` times `lr_factor`."""
    planned = scheduled_lr(step, peak=peak, warmup_steps=warmup_steps, total_steps=total_steps, min_ratio=min_ratio)
    return planned * lr_factor(step, events, floor=floor, ramp_steps=ramp_steps)


def _event_factor(step: int, event: LrEvent, ramp_steps: int) -> float:
    if step < event.step:
        return 1.0
    if event.released_step is None or step < event.released_step:
        return event.factor
    way_back = (step - event.released_step) / ramp_steps
    return event.factor + (1.0 - event.factor) * way_back if way_back < 1.0 else 1.0
