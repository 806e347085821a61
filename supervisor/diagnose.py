"""Which steps an incident's diagnosis computes again, and what its verdict means to the ladder. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stormsail.platform.diagnosis import Cause, Diagnosis, ReplayPlan
from stormsail.platform.messages import CheckpointRef, Tier
from stormsail.supervisor.case import Case

BEFORE, AFTER = 2, 8
"""The window: so many steps before the onset, and so many from it on."""

_MILDEST = {
    Cause.EXPLOSION: Tier.ROLLBACK,
    Cause.OSCILLATION: Tier.ROLLBACK,
    Cause.NUMERICS: Tier.FP32_REPLAY,
    Cause.ARCHITECTURE: Tier.EXHAUSTED,
}


def plan_replay(case: Case, committed: Sequence[CheckpointRef], *, exact: bool, budget_steps: int) -> ReplayPlan | str:
    """Plan the replay of an incident.

    Args:
        case: The incident.
        committed: States of the live line that can be loaded; the initial state is always there.
        exact: Whether the same steps must give the same bits.
        budget_steps: Steps that may be computed in all.

    Returns:
        The plan, or why there can be none.
    """
    if case.onset < 0:
        return _plan_search(case, committed, exact=exact, budget_steps=budget_steps)
    first = max(0, case.onset - BEFORE)
    stop = case.onset + AFTER + 1
    before = [ref for ref in committed if ref.step <= first]
    restore = max(before, key=lambda ref: (ref.step, ref.generation), default=None)
    start = 0 if restore is None else restore.step
    if first - start + stop - first > budget_steps:
        return f"the newest state from before the onset is that of step {start}: too far back for {budget_steps} steps"
    return ReplayPlan(
        restore=restore,
        start=start,
        window=(first, stop),
        calm=tuple(row for row in case.trace.rows if row.step < case.onset),
        recorded=tuple(row for row in case.trace.rows if row.step >= start),
        onset=case.onset,
        exact=exact,
        budget_steps=budget_steps,
    )


def _plan_search(case: Case, committed: Sequence[CheckpointRef], *, exact: bool, budget_steps: int) -> ReplayPlan | str:
    """No step looks abnormal: look for bits that differ, as far back as half of the budget reaches."""
    if not exact:
        return "nothing looks abnormal, and arithmetic that does not repeat cannot be searched for bits"
    stop = case.trace.rows[-1].step + 1
    reach = [ref for ref in committed if stop - budget_steps * 3 // 5 <= ref.step < stop]
    restore = min(reach, key=lambda ref: (ref.step, -ref.generation), default=None)
    if restore is None:
        return f"no state of the last {budget_steps * 3 // 5} steps can be loaded"
    rows = case.trace.rows
    return ReplayPlan(
        restore=restore,
        start=restore.step,
        window=(restore.step, stop),
        calm=rows,
        recorded=tuple(row for row in rows if row.step >= restore.step),
        onset=-1,
        budget_steps=budget_steps,
    )


def mildest_tier(diagnosis: Diagnosis) -> Tier:
    """The mildest tier that can cure what was found: tier 1 unless the verdict is confident and says otherwise."""
    return _MILDEST.get(diagnosis.cause, Tier.RESUME) if diagnosis.confident else Tier.RESUME


def left_out(diagnosis: Diagnosis) -> tuple[tuple[int, int], ...]:
    """Sample positions [start, stop) that are skipped from now on."""
    return diagnosis.suspects if diagnosis.confident and diagnosis.cause is Cause.DATA else ()
