"""The verdict follows from what repeats, and then from what heals."""

from __future__ import annotations

import math

from tests.support.scripted_run import (
    BATCH,
    LAST,
    ONSET,
    Bad,
    Pass,
    Rule,
    ScriptedRun,
    calm,
    ill,
    never,
    plan_for,
    positions_of,
    trace_of,
)

from stormsail.platform.diagnosis import Cause, Diagnosis, TraceRow
from stormsail.supervisor.case import open_case
from stormsail.supervisor.classify import classify
from stormsail.workers.replay import replay


def diagnosed(rule: Rule, *, bad: Bad = never, budget: int = 60, exact: bool = True, last: int = LAST) -> Diagnosis:
    trace = trace_of(rule, 20, last)
    case = open_case(trace, ONSET)
    assert case is not None
    assert case.onset == ONSET
    plan = plan_for(trace, onset=ONSET, start=54, budget=budget, exact=exact)
    return classify(case, plan, replay(plan, ScriptedRun(rule, bad), "bf16"))


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
