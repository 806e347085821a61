"""How a repair changes the list of learning-rate events of the live line; pure.

What was decided never rolls back: a repair adds an event or makes older ones last longer, and removes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stormsail.platform.messages import LrEvent
from stormsail.workers.schedule import lr_factor

_NOTHING = 1e-9


def hold_longer(events: Sequence[LrEvent], *, now_step: int, released_step: int) -> tuple[LrEvent, ...]:
    """Re-issue every event that is still held at `now_step`, so that it is held until `released_step` at least."""
    return tuple(
        replace(event, released_step=max(event.released_step, released_step))
        if event.released_step is not None and event.released_step > now_step
        else event
        for event in events
    )


def cut(
    events: Sequence[LrEvent],
    event: LrEvent,
    *,
    now_step: int,
    floor: float,
    ramp_steps: int,
) -> tuple[tuple[LrEvent, ...], LrEvent] | None:
    """Add a reduction that begins where a rollback restarts.

    Events that are still held at `now_step` but began later than that are moved back to it, so that the reductions
    multiply from the first step on (a second one of 0.8 gives 0.64 at once). The new event is made milder where it
    would lead below the floor.

    Args:
        events: The events of the live line.
        event: The reduction that is wanted; its `step` is the step that the rollback restarts from.
        now_step: Step of the incident.
        floor: Lowest factor on the schedule.
        ramp_steps: Steps over which a released factor returns to 1.

    Returns:
        All events, and the one that was added; or None where the factor is at its floor already.
    """
    begun = tuple(
        replace(old, step=min(old.step, event.step))
        if old.released_step is None or old.released_step > now_step
        else old
        for old in events
    )
    in_force = lr_factor(event.step, begun, floor=floor, ramp_steps=ramp_steps)
    if in_force <= floor + _NOTHING:
        return None
    added = replace(event, factor=max(event.factor, floor / in_force))
    return (*begun, added), added
