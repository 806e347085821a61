"""Shadow mode on the supervisor's side: which repairs are made all the same, and how the others are told; pure.

Doing nothing about bad numbers leaves a run that goes on. Doing nothing about a lost process ends it: so it is resumed
from the newest committed state, which changes nothing of what the run computes. Whatever goes further back, or touches
learning rate or precision, is left to a person: the run stops and says what would have been done.
"""

from __future__ import annotations

from dataclasses import replace

from stormsail.platform.errors import LadderExhaustedError
from stormsail.platform.messages import Tier
from stormsail.supervisor.ladder import Decision


def in_shadow(decision: Decision) -> Decision:
    """The decision that is carried out instead."""
    if decision.stop_exit_code is not None or decision.tier in (None, Tier.RESUME):
        return decision
    left = f"shadow mode goes no further than tier 1; it would have been: {decision.action}"
    return replace(
        decision,
        action=f"stop: {left}",
        reason=f"{decision.reason}; {left}",
        stop_exit_code=LadderExhaustedError.exit_code,
        tried=False,
    )
