"""What kind of trouble an incident was: from the rows around it and the replay of its steps to one verdict. Pure.

The order of the questions is the order of what can be trusted. Whether the same steps bring the trouble back is a
fact about bits; which change heals it is an experiment (both in `proof.py`); what the rows look like is a hint
(`hints.py`). Without a replay there are only hints, and no verdict from them is confident enough to change what the
ladder does.
"""

from __future__ import annotations

from dataclasses import replace

from stormsail.platform.diagnosis import Cause, Diagnosis, ReplayPlan, ReplayResult
from stormsail.supervisor.case import Case, placed
from stormsail.supervisor.hints import verdict_of_rows
from stormsail.supervisor.proof import Proof
from stormsail.workers.detect.signs import is_finite, middle_groups, signs_of
from stormsail.workers.replay import bits


def classify(case: Case | None, plan: ReplayPlan | None = None, result: ReplayResult | None = None) -> Diagnosis:
    """The verdict on an incident.

    Args:
        case: As `open_case` saw it.
        plan: The replay that was asked for, if any.
        result: What it gave.
    """
    if case is None:
        return Diagnosis(Cause.UNKNOWN, 0.0, ("too few steps are known to tell",))
    if result is None:
        return verdict_of_rows(case)
    if plan is None or result.problem or not result.outcomes:
        return verdict_of_rows(case, why=result.problem, broken=result.broken)
    case = _enriched(case, result)
    proof = Proof(case, plan, result)
    found = proof.not_repeated() if proof.vanished else proof.repeated()
    if case.onset < 0 and proof.differs is not None:
        found = replace(found, onset=proof.differs)
    return placed(case, found)


def _enriched(case: Case, result: ReplayResult) -> Case:
    """A replay measures in every step what a run samples; fill in what its calm steps say about layers."""
    calm = [row for row in (*result.prefix, *result.outcomes[0].rows) if row.step < case.onset and is_finite(row)]
    if case.limits.groups or not calm:
        return case
    limits = replace(
        case.limits,
        groups=middle_groups(calm),
        zero_share=max(case.limits.zero_share, *(row.zero_share for row in calm)),
    )
    first = result.outcomes[0].rows
    again = {row.step: row for row in first}
    ill = tuple(
        again[row.step] if row.step in again and bits(row) == bits(again[row.step]) else row for row in case.ill
    )
    signs = case.signs | frozenset(sign for row in ill for sign in signs_of(row, limits))
    trace = case.trace if case.trace.names else replace(case.trace, names=result.names)
    return Case(trace, case.onset, limits, ill, signs)
