"""Shadow mode on the supervisor's side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stormsail.platform.messages import CheckpointRef, Tier
from stormsail.supervisor.ladder import Decision, LadderState
from stormsail.supervisor.shadow import in_shadow

RESUME = Decision(
    state=LadderState(),
    tier=Tier.RESUME,
    episode=1,
    restore=CheckpointRef(1, 50),
    lr_event=None,
    lr_events=(),
    lr_factor=1.0,
    precision="bf16",
    fp32_until=None,
    skip=(),
    reason="a process was lost",
    action="tier 1, resume from step 50",
)


def test_a_resume_changes_nothing_of_what_is_computed_and_is_made() -> None:
    assert in_shadow(RESUME) is RESUME


@pytest.mark.parametrize("tier", [Tier.ROLLBACK, Tier.FP32_REPLAY])
def test_whatever_goes_further_is_told_and_the_run_stops_for_a_person(tier: Tier) -> None:
    made = in_shadow(replace(RESUME, tier=tier, action="tier 2, rollback to step 40"))
    assert (made.stop_exit_code, made.tried) == (4, False)
    assert "it would have been: tier 2, rollback to step 40" in made.reason
    assert made.action.startswith("stop: shadow mode")


def test_an_end_is_an_end() -> None:
    end = replace(RESUME, tier=Tier.EXHAUSTED, stop_exit_code=4)
    assert in_shadow(end) is end
