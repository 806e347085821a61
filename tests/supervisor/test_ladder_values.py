"""Policy, fault and decision."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.support.ladder_run import POLICY

from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.repair import LadderSection
from stormsail.platform.messages import CheckpointRef, FaultKind, Tier
from stormsail.supervisor.ladder import CandidateCheckpoint, Fault, LadderPolicy, LadderState, decide


def test_the_policy_is_taken_from_the_configuration() -> None:
    config = RunConfig.model_validate({"name": "r", "train": {"steps": 1000}, "rollback": {"min_steps": 10}})
    assert LadderPolicy.from_config(config) == POLICY
    stopping = config.model_copy(update={"ladder": LadderSection(on_anomaly="stop")})
    assert LadderPolicy.from_config(stopping) == replace(POLICY, stop_on_anomaly=True)


def test_a_decision_becomes_the_journals_event() -> None:
    decision = decide(
        LadderState(completed=56, ever_completed=True),
        Fault(FaultKind.SPIKE, 57, 55, 1.0, mildest=Tier.ROLLBACK),
        [CandidateCheckpoint(CheckpointRef(1, 20), good=True)],
        POLICY,
        (),
        run_precision="bf16",
        generation=3,
    )
    data = json.loads(json.dumps(decision.to_json()))
    assert data["tier"] == "rollback"
    assert data["restore"] == {"generation": 1, "step": 20}
    assert data["lr_events"] == [{"step": 20, "factor": 0.8, "generation": 3, "released_step": 308}]
    assert LadderState.from_json(data["state"]) == decision.state


def test_a_stop_without_the_ladder_has_neither_tier_nor_state_to_restore() -> None:
    fault = Fault(FaultKind.USER_CODE, -1, -1, 1.0, signature="TypeError")
    data = decide(LadderState(), fault, (), POLICY, (), run_precision="bf16", generation=2).to_json()
    assert (data["tier"], data["episode"], data["restore"], data["stop_exit_code"]) == (None, None, None, 6)
