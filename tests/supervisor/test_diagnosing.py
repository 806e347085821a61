"""An incident asks for an experiment, and its outcome decides where the ladder begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import Staff, beat, data_of, kinds, small_config
from tests.support.scripted_run import Bad, Pass, Rule, ScriptedRun, calm, never, positions_of

from stormsail.platform.diagnosis import ReplayPlan, ReplayResult, TraceRow
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef, Directive, FaultKind, Incident, Tier
from stormsail.workers.replay import replay

ONSET, SEEN = 34, 37
ALONE = "from the rows alone, without a replay"


def spike(step: int = SEEN, *, generation: int = 1) -> Incident:
    evidence: dict[str, Any] = {"reason": "loss z 14", "loss": 3.5, "grad_norm": 1.0, "rank": -1, "batch": step + 1}
    return Incident(generation, step, ONSET, FaultKind.SPIKE, 14.0, evidence)


class Played:
    """A supervisor with thirty-seven reported steps of a scripted run, the last three ill."""

    def __init__(self, folder: Path, **diagnose: Any) -> None:
        config = small_config(train={"steps": 60}, diagnose={"enabled": True, **diagnose})
        self.staff = Staff(FragileStore(), folder, config)
        self.staff.begin()

    def live(self, rule: Rule, *, saved: tuple[int, ...] = (20, 30)) -> None:
        for step in range(SEEN):
            if step in saved:
                self.staff.checkpoint(step)
            row = rule(Pass(live=True), step)
            self.staff.steps(
                step,
                step,
                loss=row.loss,
                grad_norm=row.grad_norm,
                lr=row.lr,
                batch=row.batch,
                values={"update.rms": row.update_rms},
            )

    def diagnosed(self, rule: Rule, bad: Bad = never) -> Directive:
        """Report the incident, carry out what is asked for, and get the decision."""
        self.live(rule)
        asked = self.staff.answering.incident(spike())
        assert asked.experiment is not None
        return self.staff.answering.replayed(spike(), replay(asked.experiment, ScriptedRun(rule, bad), "bf16"))

    def noted(self, kind: str) -> Any:
        return data_of(Journal.read(self.staff.store), kind)

    def kinds(self) -> list[str]:
        return kinds(Journal.read(self.staff.store))


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path)
    yield made
    made.staff.close()


def ill_for_good(_now: Pass, step: int) -> TraceRow:
    return calm(step, loss=3.5) if step >= ONSET else calm(step)


def test_the_experiment_starts_from_the_newest_state_before_the_onset(played: Played) -> None:
    played.live(ill_for_good)
    asked = played.staff.answering.incident(spike())
    assert isinstance(asked.experiment, ReplayPlan)
    assert (asked.experiment.restore, asked.experiment.window, asked.experiment.exact) == (
        CheckpointRef(1, 30),
        (32, 43),
        True,
    )
    assert asked.generation == 1  # nothing is decided yet
    assert [row.step for row in asked.experiment.recorded] == list(range(30, SEEN + 1))
    assert "ladder.decided" not in played.kinds()


def test_a_rate_that_was_too_high_begins_at_tier_2(played: Played) -> None:
    def rule(now: Pass, step: int) -> TraceRow:
        return ill_for_good(now, step) if now.lr_factor == 1.0 else calm(step)

    assert played.diagnosed(rule).tier is Tier.ROLLBACK
    assert played.noted("diagnosis.made")["cause"] == "optimizer_oscillation"
    assert "diagnosis: optimizer_oscillation, 90% sure" in played.noted("ladder.decided")["reason"]


def test_numerics_begin_at_tier_3(played: Played) -> None:
    directive = played.diagnosed(lambda now, step: calm(step) if now.precision == "fp32" else ill_for_good(now, step))
    assert (directive.tier, directive.precision) == (Tier.FP32_REPLAY, "fp32")


def test_bad_data_are_left_out_from_now_on_at_tier_1(played: Played) -> None:
    def bad(place: int) -> bool:
        return place // 4 == ONSET

    def rule(now: Pass, step: int) -> TraceRow:
        return calm(step, loss=3.5) if any(map(bad, positions_of(step, now.leave_out))) else calm(step)

    directive = played.diagnosed(rule, bad)
    assert (directive.tier, directive.skip) == (Tier.RESUME, ((4 * ONSET, 4 * ONSET + 4),))


def test_hardware_is_repaired_at_tier_1_and_suspected_aloud(played: Played) -> None:
    directive = played.diagnosed(lambda now, step: ill_for_good(now, step) if now.live else calm(step))
    assert (directive.tier, directive.skip) == (Tier.RESUME, ())
    assert played.noted("hardware.suspected")["todo"] == "test the node before it is used again"


def test_an_architecture_that_cannot_work_stops_the_run_with_the_verdict(played: Played) -> None:
    def dead(now: Pass, step: int) -> TraceRow:
        row = ill_for_good(now, step)
        return replace(row, groups=(0.5, 0.5, 0.0, 0.4, 0.1)) if step >= ONSET else row

    directive = played.diagnosed(dead)
    assert directive.tier is Tier.EXHAUSTED
    assert "architectural" in directive.stop_reason


def test_what_comes_back_inside_an_episode_climbs_without_another_experiment(played: Played) -> None:
    directive = played.diagnosed(lambda now, step: ill_for_good(now, step) if now.live else calm(step))
    again = played.staff.answering.incident(replace(spike(), generation=directive.generation))
    assert (again.experiment, again.tier) == (None, Tier.ROLLBACK)


def test_without_a_state_to_start_from_the_ladder_goes_its_usual_way(tmp_path: Path) -> None:
    played = Played(tmp_path, budget_steps=20)
    played.live(ill_for_good, saved=())
    directive = played.staff.answering.incident(spike())
    assert (directive.experiment, directive.tier) == (None, Tier.RESUME)
    assert "too far back for 20 steps" in played.noted("diagnosis.skipped")["why"]
    assert played.noted("diagnosis.made")["evidence"][-1] == ALONE
    played.staff.close()


def test_a_run_that_does_not_want_it_is_not_asked(tmp_path: Path) -> None:
    played = Played(tmp_path, enabled=False)
    played.live(ill_for_good)
    assert played.staff.answering.incident(spike()).tier is Tier.RESUME
    played.staff.close()


def test_without_a_replay_the_rows_tell_what_they_can_and_the_ladder_decides_as_if_they_did_not(tmp_path: Path) -> None:
    played = Played(tmp_path, enabled=False)
    played.live(ill_for_good)
    directive = played.staff.answering.incident(spike())
    found = played.noted("diagnosis.made")
    assert (found["cause"], found["confidence"], found["computed_steps"]) == ("unknown", 0.0, 0)
    assert found["evidence"] == ["the loss of a batch stands out: that has several causes", ALONE]
    assert played.kinds().index("diagnosis.made") < played.kinds().index("ladder.decided")
    assert (directive.tier, directive.skip) == (Tier.RESUME, ())
    assert "diagnosis" not in played.noted("ladder.decided")["reason"]
    played.staff.close()


def test_shadow_mode_names_a_likely_kind_too(played: Played) -> None:
    played.live(lambda _now, step: calm(step, loss=3.5, grad_norm=500.0) if step >= ONSET else calm(step))
    played.staff.hearing.heartbeat(beat(step=SEEN, lines=((1, "incident.shadowed", asdict(spike())),)))
    assert played.noted("diagnosis.made")["cause"] == "gradient_explosion"
    assert played.noted("ladder.shadowed")["diagnosis"] == "likely gradient explosion (60% sure)"


def test_shadow_mode_names_no_kind_where_the_rows_tell_none(played: Played) -> None:
    played.live(ill_for_good)
    played.staff.hearing.heartbeat(beat(step=SEEN, lines=((1, "incident.shadowed", asdict(spike())),)))
    assert played.noted("diagnosis.made")["cause"] == "unknown"
    assert played.noted("ladder.shadowed")["diagnosis"] == ""


def test_an_experiment_that_failed_leaves_the_ladder_as_it_is(played: Played) -> None:
    played.live(ill_for_good)
    played.staff.answering.incident(spike())
    directive = played.staff.answering.replayed(spike(), ReplayResult(problem="the checkpoint is damaged"))
    assert directive.tier is Tier.RESUME
    assert "no replay: the checkpoint is damaged" in played.noted("diagnosis.made")["evidence"]


def test_steps_of_an_older_generation_need_not_give_the_same_bits(played: Played) -> None:
    played.live(ill_for_good)
    played.staff.decider.start()
    played.staff.steps(30, 32)
    early = Incident(2, 33, 31, FaultKind.SPIKE, 14.0, {"loss": 9.5, "grad_norm": 1.0})
    asked = played.staff.answering.incident(early)
    assert asked.experiment is not None
    assert (asked.experiment.start, asked.experiment.exact) == (20, False)


def test_ranks_that_disagreed_are_not_diagnosed(played: Played) -> None:
    """Their step has no loss, and a replay from a common state would find it healthy: that is no broken hardware."""
    played.live(lambda _now, step: calm(step))
    evidence: dict[str, Any] = {"reason": "ranks disagree", "detector": "plan", "ranks": [1], "batch": SEEN + 1}
    asked = played.staff.answering.incident(Incident(1, SEEN, SEEN, FaultKind.DESYNC, 1.0, evidence))
    assert asked.experiment is None
    assert "ranks disagreed about the plan" in played.noted("diagnosis.skipped")["why"]
