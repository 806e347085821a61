"""Which experiments a replay makes, in which order, and when it stops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
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

from stormsail.platform.diagnosis import ReplayResult, TraceRow, Variant
from stormsail.workers.detect.signs import limits_of
from stormsail.workers.replay import replay, smaller_rate

ONSET, START = 60, 55


def replayed(
    rule: Rule, *, bad: Bad = never, budget: int = 60, precision: str = "bf16"
) -> tuple[ReplayResult, ScriptedRun]:
    plan = plan_for(trace_of(rule, 20, 75), onset=ONSET, start=START, budget=budget)
    subject = ScriptedRun(rule, bad)
    return replay(plan, subject, precision), subject


def variants(result: ReplayResult) -> list[Variant]:
    return [outcome.variant for outcome in result.outcomes]


def ill(_now: Pass, step: int) -> TraceRow:
    return calm(step, loss=3.5) if step >= ONSET else calm(step)


def test_the_state_is_kept_once_and_the_window_starts_there() -> None:
    result, subject = replayed(ill)
    assert subject.kept == 1
    assert [row.step for row in result.prefix] == [55, 56, 57]
    assert [row.step for row in result.outcomes[0].rows] == list(range(58, 69))


def test_what_heals_ends_the_replay() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        return calm(step) if now.lr_factor < 1.0 else ill(now, step)

    assert variants(replayed(rule)[0]) == [Variant.SAME, Variant.SMALLER_LR]


def test_a_variant_that_heals_nothing_is_broken_off() -> None:
    result, _ = replayed(ill)
    lr = next(outcome for outcome in result.outcomes if outcome.variant is Variant.SMALLER_LR)
    assert not lr.finished
    assert len(lr.rows) == 5  # two calm ones, three ill ones


def test_where_numbers_are_not_finite_fp32_comes_first() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        return calm(step, loss=math.nan, nonfinite=1) if step >= ONSET and now.precision == "bf16" else calm(step)

    assert variants(replayed(rule)[0]) == [Variant.SAME, Variant.FP32]


def test_a_run_in_fp32_is_not_compared_with_fp32() -> None:
    assert Variant.FP32 not in variants(replayed(ill, precision="fp32")[0])


def test_only_batches_that_stand_out_are_left_out() -> None:
    def bad(place: int) -> bool:
        return place == ONSET * BATCH

    def rule(now: Pass, step: int) -> TraceRow:
        return calm(step, loss=3.0) if any(map(bad, positions_of(step, now.leave_out))) else calm(step)

    result, _ = replayed(rule, bad=bad)
    assert variants(result) == [Variant.SAME, Variant.WITHOUT_SUSPECTS]
    assert result.suspects == ((ONSET * BATCH, (ONSET + 1) * BATCH),)


def test_what_does_not_come_back_is_computed_once_more_to_see_whether_replays_agree() -> None:
    assert variants(replayed(lambda now, step: ill(now, step) if now.live else calm(step))[0]) == [Variant.SAME] * 2


@pytest.mark.parametrize("budget", [19, 25, 32, 40, 60])
def test_no_replay_computes_more_than_its_budget(budget: int) -> None:
    result, subject = replayed(ill, budget=budget)
    assert subject.steps <= result.steps <= budget
    assert subject.steps + math.ceil(subject.scores / 3) == result.steps


def test_a_budget_too_small_for_one_window_computes_nothing() -> None:
    result, subject = replayed(ill, budget=18)
    assert "diagnose.budget_steps is 18" in result.problem
    assert subject.steps == 0


def test_too_few_calm_steps_are_a_problem() -> None:
    plan = plan_for(trace_of(ill, 55, 75), onset=ONSET, start=START)
    assert "calm steps" in replay(plan, ScriptedRun(ill), "bf16").problem


def test_a_search_stops_at_the_first_bits_that_differ() -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        return calm(step, loss=2.0000001) if now.live and step == 62 else calm(step)

    plan = plan_for(trace_of(rule, 20, 75), onset=ONSET, start=START)
    result = replay(replace(plan, window=(START, 76), onset=-1), ScriptedRun(rule), "bf16")
    assert [len(outcome.rows) for outcome in result.outcomes] == [21, 8]


def test_the_smaller_rate_is_the_calm_one_where_it_had_jumped_or_else_one_half() -> None:
    def jumped(_now: Pass, step: int) -> TraceRow:
        return calm(step, lr=1e-2) if step >= ONSET else calm(step)

    for rule, factor in ((jumped, 0.1), (ill, 0.5)):
        plan = plan_for(trace_of(rule, 20, 75), onset=ONSET, start=START)
        limits = limits_of(plan.calm)
        assert limits is not None
        assert smaller_rate(plan, limits, ONSET) == pytest.approx(factor)
        assert smaller_rate(plan, limits, ONSET - 1) == 1.0
