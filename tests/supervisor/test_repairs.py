"""The tiers by themselves; what they do in a history is in `test_ladder*.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.ladder_run import POLICY

from stormsail.platform.errors import InternalError
from stormsail.platform.messages import CheckpointRef, FaultKind, Tier
from stormsail.supervisor import repairs
from stormsail.supervisor.candidates import CandidateCheckpoint
from stormsail.supervisor.ladder_state import Episode, LadderState, Restore
from stormsail.supervisor.ladder_values import Fault

SAVED = CheckpointRef(1, 50)


def case(tier: Tier, *restores: Restore) -> repairs.Case:
    """A spike at step 57 that begins at 55, with good checkpoints every 10 steps."""
    episode = Episode(number=1, tier=tier, opened_step=57, opened_time_s=0.0, onset=55, last_step=57, restores=restores)
    return repairs.Case(
        state=LadderState(numeric=episode, episodes=1),
        fault=Fault(FaultKind.SPIKE, 57, 55, 0.0),
        episode=episode,
        candidates=[CandidateCheckpoint(CheckpointRef(1, step), good=True) for step in range(10, 60, 10)],
        policy=POLICY,
        events=(),
        run_precision="bf16",
        generation=2,
        opened=not restores,
    )


@pytest.mark.parametrize(("tier", "step"), [(Tier.RESUME, 50), (Tier.ROLLBACK, 40)])
def test_each_tier_goes_back_as_far_as_it_says(tier: Tier, step: int) -> None:
    decision = repairs.repair(case(tier))
    assert decision.restore == CheckpointRef(1, step)


def test_a_repair_remembers_what_it_went_back_to() -> None:
    decision = repairs.repair(case(Tier.ROLLBACK, Restore(Tier.RESUME, SAVED)))
    assert decision.state.numeric is not None
    assert decision.state.numeric.restores == (
        Restore(Tier.RESUME, SAVED),
        Restore(Tier.ROLLBACK, CheckpointRef(1, 40)),
    )
    assert decision.state.loaded == CheckpointRef(1, 40)
    assert decision.state.completed == -1


def test_a_used_up_episode_has_no_repair() -> None:
    with pytest.raises(InternalError, match="used up"):
        repairs.repair(case(Tier.EXHAUSTED))


@pytest.mark.parametrize(("ref", "precision", "until"), [(SAVED, "fp32", 60), (CheckpointRef(1, 60), "bf16", None)])
def test_fp32_belongs_to_steps(ref: CheckpointRef, precision: str, until: int | None) -> None:
    state = replace(LadderState(), fp32_until=60)
    assert repairs.precision_from(state, ref, "bf16") == precision
    assert repairs.fp32_until_from(state, ref) == until


def test_the_newest_state_is_any_committed_one_outside_a_numeric_episode() -> None:
    wish = repairs.newest(LadderState(failures=((SAVED, 1), (CheckpointRef(1, 40), 2))))
    assert (wish.before, wish.good_only, wish.banned) == (None, False, {CheckpointRef(1, 40)})
