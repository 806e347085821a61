"""Whether the run has become slow as a whole: tokens per second of late against what is usual. Pure.

A run whose steps take twice as long loses as much as one that stands still half of the time, and nothing about its
numbers says so. Usual is the median over a long past; late is the median over the last steps. Steps in which work was
repaired (a restart, a load) are no steps of this kind: whoever feeds this begins anew after each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from stormsail.platform.messages import StepRow
from stormsail.workers.detect.beside import Throughput as Limits


@dataclass(frozen=True, slots=True)
class Throughput:
    """What is known of the rate; belongs to one attempt.

    Attributes:
        rates: Tokens per second of the last steps, oldest first; while the run is slow, of those before.
        late: Of the very last steps.
        last_s: When the last step ended, in seconds since the epoch; 0 before the first.
        collapsed: Whether the run is slow now.
    """

    rates: tuple[float, ...] = ()
    late: tuple[float, ...] = ()
    last_s: float = 0.0
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class RateChange:
    """The run became slow, or came back.

    Attributes:
        collapsed: Which of the two.
        step: Step at which it was seen.
        tokens_per_s: The rate of late.
        usual_tokens_per_s: What is usual.
    """

    collapsed: bool
    step: int
    tokens_per_s: float
    usual_tokens_per_s: float


def observe(state: Throughput, row: StepRow, limits: Limits) -> tuple[Throughput, RateChange | None]:
    """Take note of one finished step, and say what changed.

    The rate is over the time from the end of the step before to the end of this one, so that what lies between steps
    counts too.
    """
    took_s = row.time_s - state.last_s
    state = replace(state, last_s=row.time_s)
    if took_s == row.time_s or took_s <= 0.0:  # the first one, or a clock that was set back
        return state, None
    rate = row.tokens / took_s
    late = (*state.late, rate)[-limits.late :]
    rates = state.rates if state.collapsed else (*state.rates, rate)[-limits.usual :]
    state = replace(state, late=late, rates=rates)
    if len(rates) < limits.least or len(late) < limits.late:
        return state, None
    now, usual = median(late), median(rates)
    share = now / usual if usual else 1.0
    if not state.collapsed and share < limits.collapsed:
        # What was slow already must not become what is usual.
        before = rates[: -limits.late] or rates
        return replace(state, collapsed=True, rates=before), RateChange(
            collapsed=True, step=row.step, tokens_per_s=now, usual_tokens_per_s=usual
        )
    if state.collapsed and share > limits.recovered:
        return replace(state, collapsed=False), RateChange(
            collapsed=False, step=row.step, tokens_per_s=now, usual_tokens_per_s=usual
        )
    return state, None
