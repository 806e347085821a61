"""The governor: how often the costly vitals are sampled, so that watching stays within its budget; pure.

Every rank feeds it the same reduced numbers, so all decide alike. It chooses what is looked at, never what is
computed: losses and weights are the same with any choice, which is why its memory need not be part of a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_PACE = 0.1  # weight of a new measurement in the running ones
_SAMPLES_SHARE = 0.25  # of the budget: what samples get where the rest has used it up
MOST_STEPS = 1000
"""However dear a sample is, it is taken this often."""


@dataclass(frozen=True, slots=True)
class Governor:
    """What watching has cost of late, and what follows from it.

    Attributes:
        least_steps: Steps between two samples when the budget leaves room.
        budget: Share of a step's time that watching may take.
        every_steps: Steps between two samples now.
        step_s: Running time of a step, in seconds.
        base_s: Running time of what is done at every step.
        sample_s: Running time that a sample adds.
    """

    least_steps: int
    budget: float
    every_steps: int = 0
    step_s: float = 0.0
    base_s: float = 0.0
    sample_s: float = 0.0

    @property
    def interval(self) -> int:
        """Steps between two samples now."""
        return self.every_steps or self.least_steps

    @property
    def share(self) -> float:
        """The share of a step's time that watching takes, samples included."""
        return (self.base_s + self.sample_s / self.interval) / self.step_s if self.step_s else 0.0

    def samples(self, step: int) -> bool:
        """Whether the costly vitals are taken at this step."""
        return step % self.interval == 0

    def learn(self, *, step_s: float, base_s: float, sample_s: float | None) -> Governor:
        """Take note of what the step before has cost.

        Args:
            step_s: Its time.
            base_s: Time of its vitals and verdict on the critical path, without the sample.
            sample_s: Time that its sample added, or None if it took none.
        """
        if step_s <= 0.0:
            return self
        learned = replace(
            self,
            step_s=_running(self.step_s, step_s),
            base_s=_running(self.base_s, base_s),
            sample_s=self.sample_s if sample_s is None else _running(self.sample_s, sample_s),
        )
        return learned if sample_s is None else replace(learned, every_steps=_affordable(learned))


def _affordable(governor: Governor) -> int:
    budget_s = governor.budget * governor.step_s
    left_s = max(budget_s - governor.base_s, _SAMPLES_SHARE * budget_s)
    wanted = MOST_STEPS if left_s * MOST_STEPS <= governor.sample_s else math.ceil(governor.sample_s / left_s)
    return max(governor.least_steps, min(MOST_STEPS, wanted))


def _running(before: float, now: float) -> float:
    """A running figure that one hiccup moves little: nothing moves it by more than half of itself."""
    if before == 0.0:
        return now
    return before + _PACE * (min(now, 6.0 * before) - before)
