"""The whole way from rows and a replay, or none, to a verdict."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scripted_run import (
    LAST,
    ONSET,
    Pass,
    ScriptedRun,
    calm,
    ill,
    plan_for,
    trace_of,
)

from stormsail.platform.diagnosis import CONFIDENT, Cause, ReplayResult, Trace, TraceRow
from stormsail.supervisor.case import open_case
from stormsail.supervisor.classify import classify
from stormsail.workers.replay import replay


def test_the_reason_for_no_replay_is_told() -> None:
    trace = trace_of(lambda _now, step: ill(step) if step >= ONSET else calm(step), 20, LAST)
    case = open_case(trace, ONSET)
    plan = plan_for(trace, onset=ONSET, start=54)
    found = classify(case, plan, ReplayResult(problem="too far back"))
    assert found.evidence[-1] == "no replay: too far back"


def test_a_replay_that_broke_off_says_nothing_but_why() -> None:
    trace = trace_of(lambda _now, step: ill(step) if step >= ONSET else calm(step), 20, LAST)
    plan = plan_for(trace, onset=ONSET, start=54)
    found = classify(open_case(trace, ONSET), plan, ReplayResult(problem="it broke off: no memory", broken=True))
    assert (found.cause, found.confident, found.onset) == (Cause.UNKNOWN, False, ONSET)
    assert found.evidence == ("no replay: it broke off: no memory",)


def test_too_few_rows_are_unknown() -> None:
    assert classify(open_case(Trace((), (calm(1), calm(2))), 2)).cause is Cause.UNKNOWN


class TestAsked:
    """Nobody has reported anything, and a person asks."""

    def test_silent_corruption_is_found_by_its_bits(self) -> None:
        def rule(now: Pass, step: int) -> TraceRow:
            row = calm(step)
            return replace(row, loss=row.loss + 1e-9) if now.live and step >= 62 else row

        trace = trace_of(rule, 20, LAST)
        case = open_case(trace, None)
        assert case is not None
        assert case.onset == -1
        plan = replace(plan_for(trace, onset=60, start=55), window=(55, LAST + 1), onset=-1)
        found = classify(case, plan, replay(plan, ScriptedRun(rule), "bf16"))
        assert (found.cause, found.onset) == (Cause.HARDWARE, 62)

    def test_a_healthy_run_is_unknown_and_repeats(self) -> None:
        trace = trace_of(lambda _now, step: calm(step), 20, LAST)
        case = open_case(trace, None)
        plan = replace(plan_for(trace, onset=60, start=55), window=(55, LAST + 1), onset=-1)
        found = classify(case, plan, replay(plan, ScriptedRun(lambda _now, step: calm(step)), "bf16"))
        assert found.cause is Cause.UNKNOWN
        assert found.evidence[-1] == "the same steps gave the same bits"


numbers = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0.0, 10.0))
rows = st.builds(
    TraceRow,
    step=st.just(0),
    loss=numbers,
    grad_norm=numbers.map(abs),
    groups=st.sampled_from([(), (0.5, 0.5, 0.4, 0.4, 0.1), (math.inf, 0.0, 0.0, 0.0, 0.0)]),
    update_rms=st.floats(0.0, 10.0),
    nonfinite=st.integers(0, 3),
    bad_rank=st.integers(-1, 3),
    lr=st.floats(0.0, 1.0),
    restored=st.booleans(),
    zero_share=st.floats(-1.0, 1.0),
)


@settings(max_examples=100)
@given(st.lists(rows, min_size=2, max_size=5), st.lists(rows, min_size=7, max_size=7), st.booleans())
def test_whatever_the_numbers_there_is_a_verdict_and_a_repeated_incident_is_never_hardware(
    after: list[TraceRow], again: list[TraceRow], repeats: bool
) -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        if step < ONSET:
            return calm(step)
        if now.live or repeats:
            return replace(after[(step - ONSET) % len(after)], step=step)
        return replace(again[(step + now.number) % 7], step=step)

    trace = trace_of(rule, 20, ONSET + len(after) - 1)
    case = open_case(trace, ONSET)
    assert case is not None
    plan = plan_for(trace, onset=case.onset, start=50)
    found = classify(case, plan, replay(plan, ScriptedRun(rule), "bf16"))
    assert 0.0 <= found.confidence <= 1.0
    assert found.cause in Cause
    assert found.confident == (found.cause is not Cause.UNKNOWN and found.confidence >= CONFIDENT)
    if repeats:
        assert found.cause not in (Cause.HARDWARE, Cause.RESUME)
