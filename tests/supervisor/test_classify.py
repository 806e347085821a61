"""The verdict follows from what repeats, from what heals, and only then from what the rows look like."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scripted_run import (
    BATCH,
    Bad,
    Pass,
    Rule,
    ScriptedRun,
    calm,
    never,
    plan_for,
    positions_of,
    trace_of,
)

from stormsail.platform.diagnosis import CONFIDENT, Cause, Diagnosis, ReplayResult, Trace, TraceRow
from stormsail.supervisor.classify import classify, hint, open_case
from stormsail.workers.replay import replay

ONSET, LAST = 60, 75


def diagnosed(rule: Rule, *, bad: Bad = never, budget: int = 60, exact: bool = True, last: int = LAST) -> Diagnosis:
    trace = trace_of(rule, 20, last)
    case = open_case(trace, ONSET)
    assert case is not None
    assert case.onset == ONSET
    plan = plan_for(trace, onset=ONSET, start=54, budget=budget, exact=exact)
    return classify(case, plan, replay(plan, ScriptedRun(rule, bad), "bf16"))


def ill(step: int, **changes: object) -> TraceRow:
    return calm(step, **{"loss": 3.5, **changes})


def test_what_does_not_come_back_is_hardware_with_the_rank_that_showed_it() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        struck = now.live and step == ONSET
        return calm(step, loss=math.nan, nonfinite=3, bad_rank=1) if struck else calm(step)

    found = diagnosed(rule)
    assert (found.cause, found.ranks, found.onset) == (Cause.HARDWARE, (1,), ONSET)
    assert found.confident


def test_what_does_not_come_back_behind_a_restart_with_jumping_updates_is_the_restart() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        if not now.live or step < ONSET:
            return calm(step)
        return ill(step, update_rms=0.9, restored=step == ONSET)

    assert diagnosed(rule).cause is Cause.RESUME


def test_a_restart_alone_makes_no_confident_verdict() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        return ill(step, restored=step == ONSET) if now.live and step >= ONSET else calm(step)

    assert not diagnosed(rule).confident


def test_replays_that_differ_from_each_other_prove_nothing() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        if now.live and step >= ONSET:
            return ill(step)
        return calm(step, loss=2.0 + 0.001 * now.number)

    assert diagnosed(rule).cause is Cause.UNKNOWN


def test_a_pass_that_never_agreed_with_the_recorded_one_proves_nothing() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        if now.live:
            return ill(step) if step >= ONSET else calm(step)
        return calm(step, loss=2.001)

    assert diagnosed(rule).cause is Cause.UNKNOWN


def test_other_work_is_no_evidence_against_the_hardware() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        return ill(step, batch=7) if now.live and step >= ONSET else calm(step)

    found = diagnosed(rule)
    assert found.cause is Cause.UNKNOWN
    assert "another batch" in " ".join(found.evidence)


def test_arithmetic_that_does_not_repeat_can_still_speak_for_hardware_but_less() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        if now.live and step >= ONSET:
            return ill(step)
        return calm(step, loss=2.0 + 0.001 * ((step + now.number) % 3))

    found = diagnosed(rule, exact=False)
    assert (found.cause, found.confidence) == (Cause.HARDWARE, 0.8)


def test_what_fp32_heals_is_numerics() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        over = now.precision == "bf16" and step >= ONSET
        return calm(step, loss=2.0, grad_norm=math.inf, nonfinite=5) if over else calm(step)

    assert diagnosed(rule).cause is Cause.NUMERICS


def test_what_goes_with_its_samples_is_data_and_names_them() -> None:
    def bad(place: int) -> bool:
        return ONSET * BATCH <= place < (ONSET + 2) * BATCH

    def rule(now: Pass, step: int) -> TraceRow:
        return ill(step) if any(map(bad, positions_of(step, now.leave_out))) else calm(step)

    found = diagnosed(rule, bad=bad)
    assert (found.cause, found.steps) == (Cause.DATA, (ONSET, ONSET + 1))
    assert found.suspects == ((ONSET * BATCH, (ONSET + 2) * BATCH),)


def test_what_a_smaller_rate_heals_is_the_optimizer() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        fast = 12.0 if step >= ONSET else 1.0
        hot = fast * now.lr_factor > 2.0
        return ill(step, lr=1e-3 * fast) if hot else calm(step, lr=1e-3 * fast * now.lr_factor)

    assert diagnosed(rule).cause is Cause.OSCILLATION


def test_gradients_that_fade_make_it_the_architecture_though_a_smaller_rate_heals() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        fast = 12.0 if step >= ONSET else 1.0
        if fast * now.lr_factor <= 2.0:
            return calm(step, lr=1e-3)
        return ill(step, lr=1e-3 * fast, groups=(0.5, 0.001, 0.03, 0.5, 0.1))

    assert diagnosed(rule).cause is Cause.ARCHITECTURE


def test_what_nothing_heals_is_the_architecture_and_the_dead_layer_is_named() -> None:
    def rule(_now: Pass, step: int) -> TraceRow:
        return ill(step, groups=(0.5, 0.5, 0.0, 0.4, 0.1)) if step >= ONSET else calm(step)

    found = diagnosed(rule)
    assert (found.cause, found.layers[0]) == (Cause.ARCHITECTURE, "blocks.1")
    assert found.confident


def test_that_nothing_heals_is_no_confident_verdict_by_itself() -> None:
    found = diagnosed(lambda _now, step: ill(step) if step >= ONSET else calm(step))
    assert found.cause is Cause.ARCHITECTURE
    assert not found.confident


def test_a_norm_that_leaves_by_orders_of_magnitude_is_an_explosion() -> None:
    def rule(_now: Pass, step: int) -> TraceRow:
        grown = 4.0 ** max(step - ONSET + 1, 0)
        return calm(step, grad_norm=grown * 1.0, groups=(0.5 * grown, 0.5 * grown, 0.4, 0.4, 0.1))

    found = diagnosed(rule)
    assert (found.cause, set(found.layers)) == (Cause.EXPLOSION, {"embed", "blocks.0"})


def test_what_was_not_tried_for_want_of_budget_leaves_doubt() -> None:
    found = diagnosed(lambda _now, step: ill(step) if step >= ONSET else calm(step), budget=32)
    assert not found.confident
    assert "not tried, for want of budget" in " ".join(found.evidence)


def test_without_a_replay_no_verdict_is_confident() -> None:
    trace = trace_of(lambda _now, step: ill(step) if step >= ONSET else calm(step), 20, LAST)
    found = classify(open_case(trace, ONSET))
    assert found.cause is Cause.DATA
    assert not found.confident


NUMBERS = st.one_of(st.floats(0.5, 1.5), st.sampled_from((0.0, 100.0, math.inf, math.nan)))
GROUPS = st.sampled_from(((), (1.0,) * 5, (0.0, math.nan, 100.0, math.inf, 1.0)))  # as many as calm rows have


@settings(max_examples=50)
@given(
    st.lists(st.builds(TraceRow, st.just(0), NUMBERS, NUMBERS, GROUPS, NUMBERS, st.integers(0, 1)), max_size=30),
    st.integers(0, 5),
)
def test_whatever_the_rows_are_a_hint_breaks_nothing_and_is_never_confident(
    rows: list[TraceRow], ill_rows: int
) -> None:
    """It is asked for at every incident, between the fault and its repair."""
    steady = [calm(step) for step in range(40)]
    traced = (*steady, *(replace(row, step=40 + index) for index, row in enumerate(rows)))
    names = ("embed", "blocks.0", "blocks.1", "blocks.2", "head")
    assert not classify(open_case(Trace(names, traced), traced[-1].step - ill_rows)).confident
    assert not classify(open_case(Trace(names, traced[40:]), None)).confident


@pytest.mark.parametrize(
    ("changes", "cause", "seen"),
    [
        ({}, Cause.UNKNOWN, "the loss of a batch stands out: that has several causes"),
        ({"nonfinite": 5}, Cause.NUMERICS, "non-finite values"),
        ({"grad_norm": 200.0}, Cause.EXPLOSION, "the gradient norm rose to"),
    ],
)
def test_a_hint_names_a_cause_only_where_no_other_one_looks_alike(
    changes: dict[str, object], cause: Cause, seen: str
) -> None:
    case = open_case(
        trace_of(lambda _now, step: ill(step, **changes) if step >= ONSET else calm(step), 20, LAST), ONSET
    )
    assert case is not None
    found = hint(case)
    assert found.cause is cause
    assert found.evidence[0].startswith(seen)
    assert found.evidence[-1] == "from the rows alone, without a replay"


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
