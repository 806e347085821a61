"""Where a replay starts, how far it reaches, and what a verdict means to the ladder."""

from __future__ import annotations

import pytest
from tests.support.scripted_run import calm, trace_of

from stormsail.platform.diagnosis import Cause, Diagnosis, ReplayPlan
from stormsail.platform.messages import CheckpointRef, Tier
from stormsail.supervisor.case import Case, open_case
from stormsail.supervisor.diagnose import left_out, mildest_tier, plan_replay


@pytest.fixture
def case() -> Case:
    trace = trace_of(lambda _now, step: calm(step, loss=4.0) if step >= 60 else calm(step), 20, 64)
    found = open_case(trace, 60)
    assert found is not None
    return found


def planned(case: Case, *steps: int, budget: int = 50) -> ReplayPlan | str:
    return plan_replay(case, [CheckpointRef(1, step) for step in steps], exact=True, budget_steps=budget)


def test_the_replay_starts_at_the_newest_state_before_its_window(case: Case) -> None:
    plan = planned(case, 40, 50, 59, 60)
    assert isinstance(plan, ReplayPlan)
    assert (plan.restore, plan.start, plan.window) == (CheckpointRef(1, 50), 50, (58, 69))
    assert [row.step for row in plan.recorded] == list(range(50, 65))
    assert plan.calm[-1].step == 59


def test_a_state_that_is_too_far_back_makes_no_plan(case: Case) -> None:
    plan = planned(case, 10)
    assert isinstance(plan, str)
    assert "step 10" in plan


def test_a_young_run_starts_again_from_its_initial_state() -> None:
    trace = trace_of(lambda _now, step: calm(step, loss=4.0) if step >= 20 else calm(step), 0, 24)
    young = open_case(trace, 20)
    assert young is not None
    plan = planned(young)
    assert isinstance(plan, ReplayPlan)
    assert (plan.restore, plan.start) == (None, 0)


class TestSearch:
    """Nothing looks abnormal."""

    def calm_case(self) -> Case:
        found = open_case(trace_of(lambda _now, step: calm(step), 20, 75), None)
        assert found is not None
        return found

    def test_it_reaches_as_far_back_as_the_budget_allows(self) -> None:
        plan = planned(self.calm_case(), 40, 50, 60, 70)
        assert isinstance(plan, ReplayPlan)
        assert (plan.start, plan.window, plan.onset) == (50, (50, 76), -1)

    def test_without_a_state_or_without_exact_arithmetic_there_is_none(self) -> None:
        assert isinstance(planned(self.calm_case(), 10), str)
        assert isinstance(plan_replay(self.calm_case(), [], exact=False, budget_steps=50), str)


@pytest.mark.parametrize(
    ("cause", "tier"),
    [
        (Cause.EXPLOSION, Tier.ROLLBACK),
        (Cause.OSCILLATION, Tier.ROLLBACK),
        (Cause.NUMERICS, Tier.FP32_REPLAY),
        (Cause.ARCHITECTURE, Tier.EXHAUSTED),
        (Cause.DATA, Tier.RESUME),
        (Cause.HARDWARE, Tier.RESUME),
        (Cause.RESUME, Tier.RESUME),
        (Cause.UNKNOWN, Tier.RESUME),
    ],
)
def test_the_ladder_begins_where_the_kind_can_be_cured_if_the_verdict_is_confident(cause: Cause, tier: Tier) -> None:
    assert mildest_tier(Diagnosis(cause, 0.9)) is tier
    assert mildest_tier(Diagnosis(cause, 0.6)) is Tier.RESUME


def test_only_samples_of_a_confident_verdict_on_data_are_left_out() -> None:
    assert left_out(Diagnosis(Cause.DATA, 0.9, suspects=((1, 2),))) == ((1, 2),)
    assert left_out(Diagnosis(Cause.DATA, 0.5, suspects=((1, 2),))) == ()
    assert left_out(Diagnosis(Cause.HARDWARE, 0.9, suspects=((1, 2),))) == ()
