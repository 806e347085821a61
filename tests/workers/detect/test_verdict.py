"""One verdict per step, on whole curves (seeded, synthetic)."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.config.detect import DetectSection, NonfiniteSection, RanksLimits, SpikeLimits
from stormsail.platform.errors import StateMismatchError
from stormsail.platform.messages import FaultKind
from stormsail.workers.detect.policy import Policy, live_rules
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import Observation, Verdict, VerdictKind, judge

POLICY = Policy()
NAN = math.nan

Point = tuple[float, float]


def _seen(
    step: int, loss: float = 3.0, norm: float = 1.0, *, bad: int = 0, poisoned: bool = False, tokens: int = 1024
) -> Observation:
    return Observation(step, loss, norm, bad, poisoned, tokens)


@dataclass(frozen=True)
class Judged:
    """A verdict and the step that it is about."""

    step: int
    verdict: Verdict

    @property
    def kind(self) -> VerdictKind:
        return self.verdict.kind


def _judge_all(
    seen: Iterable[Observation], state: DetectorState | None = None, policy: Policy = POLICY
) -> tuple[DetectorState, list[Judged]]:
    state, judged = state or DetectorState(), []
    for observation in seen:
        state, verdict = judge(state, observation, policy)
        judged.append(Judged(observation.step, verdict))
    return state, judged


def _first_incident(judged: list[Judged]) -> tuple[int, Verdict]:
    return next((each.step, each.verdict) for each in judged if each.kind is VerdictKind.INCIDENT)


def _descent(step: int, noise: random.Random) -> Point:
    """A small model's training: steep at first, then slow, with healthy noise."""
    loss = 2.2 + 3.3 * math.exp(-step / 30) + 1.0 * math.exp(-step / 300) + noise.gauss(0, 0.03)
    norm = (0.5 + 4.0 * math.exp(-step / 15)) * math.exp(noise.gauss(0, 0.1))
    return loss, norm


def _curve(steps: int, change: Callable[[int, Point], Point] | None = None, seed: int = 0) -> list[Observation]:
    noise = random.Random(seed)
    points = [_descent(step, noise) for step in range(steps)]
    return [_seen(step, *(change(step, point) if change else point)) for step, point in enumerate(points)]


def _raised(start: int, stop: int, loss: float, norm: float = 1.0) -> Callable[[int, Point], Point]:
    """Add to the loss and multiply the norm from `start` up to `stop`."""
    return lambda step, point: (point[0] + loss, point[1] * norm) if start <= step < stop else point


def _kinds(judged: list[Judged], kind: VerdictKind) -> list[int]:
    return [each.step for each in judged if each.kind is kind]


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_run_with_a_steep_descent_is_silent(seed: int) -> None:
    _, verdicts = _judge_all(_curve(800, seed=seed))
    assert _kinds(verdicts, VerdictKind.INCIDENT) == []
    assert len(_kinds(verdicts, VerdictKind.WATCH)) <= 1


@pytest.mark.parametrize(
    "change",
    [
        lambda step, point: (round(point[0] * 64) / 64, point[1]),
        lambda step, point: (point[0] - (0.3 if step > 400 else 0.0), point[1] * (0.4 if step > 400 else 1.0)),
        lambda step, point: (point[0] + 0.08 * math.sin(step / 46 * math.tau), point[1]),
        lambda step, point: (point[0], point[1] * (6.0 if step % 97 == 0 else 1.0)),
        lambda step, point: (point[0] + (0.4 if step % 113 == 0 else 0.0), point[1]),
        lambda step, point: (point[0], point[1] * (4.0 if step > 500 else 1.0)),
    ],
    ids=["quantised loss", "learning rate drop", "period of 46", "norm blips", "data outliers", "new norm level"],
)
def test_nuisances_never_become_incidents(change: Callable[[int, Point], Point]) -> None:
    _, verdicts = _judge_all(_curve(1000, change))
    assert _kinds(verdicts, VerdictKind.INCIDENT) == []


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_spike_of_up_to_three_steps_that_returns_is_only_watched(steps: int) -> None:
    _, verdicts = _judge_all(_curve(600, _raised(400, 400 + steps, loss=5.0, norm=50.0)))
    assert _kinds(verdicts, VerdictKind.INCIDENT) == []
    assert set(range(400, 400 + steps)) <= set(_kinds(verdicts, VerdictKind.WATCH))


@pytest.mark.parametrize("onset", [60, 100, 400])
def test_a_severe_spike_that_stays_is_an_incident_at_its_fourth_step(onset: int) -> None:
    _, verdicts = _judge_all(_curve(onset + 300, _raised(onset, onset + 300, loss=4.0)))
    step, first = _first_incident(verdicts)
    assert (step, first.onset, first.fault) == (onset + 3, onset, FaultKind.SPIKE)
    assert first.severity > 3.0


def test_a_mild_spike_is_an_incident_only_after_its_grace() -> None:
    _, verdicts = _judge_all(_curve(700, _raised(500, 700, loss=0.24)))
    step, first = _first_incident(verdicts)
    assert first.onset is not None
    assert 500 <= first.onset <= 503
    assert 20 <= step - 500 <= 35


def test_a_mild_spike_that_heals_within_its_grace_is_only_watched() -> None:
    _, verdicts = _judge_all(_curve(700, _raised(500, 515, loss=0.24)))
    assert _kinds(verdicts, VerdictKind.INCIDENT) == []
    assert _kinds(verdicts, VerdictKind.WATCH)


def test_a_norm_that_explodes_ahead_of_the_loss_is_an_incident() -> None:
    _, verdicts = _judge_all(
        _curve(420, lambda step, point: (point[0], point[1] * 4.0 ** max(0, step - 399)) if step < 410 else point)
    )
    step, first = _first_incident(verdicts)
    assert first.onset == 400
    assert step <= 405


def test_a_slow_ramp_does_not_drag_the_baseline_along() -> None:
    _, verdicts = _judge_all(_curve(600, lambda step, point: (point[0] + 0.1 * min(30, max(0, step - 400)), point[1])))
    assert _kinds(verdicts, VerdictKind.INCIDENT)[0] < 415


def test_one_nonfinite_gradient_drops_the_update_and_nothing_more() -> None:
    state, verdicts = _judge_all([_seen(0), _seen(1, bad=3), _seen(2)])
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.HEALTHY, VerdictKind.DROP, VerdictKind.HEALTHY]
    assert verdicts[1].verdict.severity == 3
    assert state.drops.row == 0


@pytest.mark.parametrize(
    "bad",
    [_seen(0, bad=1), _seen(0, loss=NAN), _seen(0, norm=math.inf), _seen(0, loss=-math.inf, norm=NAN)],
    ids=["gradient", "loss", "norm", "both"],
)
def test_whatever_is_not_finite_is_dropped(bad: Observation) -> None:
    assert judge(DetectorState(), bad, POLICY)[1].kind is VerdictKind.DROP


@pytest.mark.parametrize("patience", [1, 3, 5])
def test_too_many_drops_in_a_row_are_an_incident_that_began_with_the_first(patience: int) -> None:
    policy = Policy(nonfinite=NonfiniteSection(patience=patience))
    _, verdicts = _judge_all([_seen(10 + step, bad=1) for step in range(patience)], policy=policy)
    assert [verdict.kind for verdict in verdicts[:-1]] == [VerdictKind.DROP] * (patience - 1)
    last = verdicts[-1].verdict
    assert (last.kind, last.fault, last.onset) == (VerdictKind.INCIDENT, FaultKind.NONFINITE, 10)


def test_drops_that_are_rare_and_not_in_a_row_are_no_incident() -> None:
    _, verdicts = _judge_all([_seen(step, bad=step % 4 == 0) for step in range(400)])
    assert _kinds(verdicts, VerdictKind.INCIDENT) == []


def test_a_drop_at_every_second_step_becomes_an_incident() -> None:
    _, verdicts = _judge_all([_seen(step, bad=step % 2 == 0) for step in range(100, 160)])
    step, verdict = _first_incident(verdicts)
    assert (step, verdict.fault, verdict.onset) == (118, FaultKind.NONFINITE, 100)
    assert "10 in all" in verdict.reason
    patient = replace(POLICY, nonfinite=NonfiniteSection(share=1.0))
    _, verdicts = _judge_all([_seen(step, bad=step % 2 == 0) for step in range(100, 160)], policy=patient)
    assert _kinds(verdicts, VerdictKind.INCIDENT) == []


def test_an_empty_batch_between_two_drops_does_not_break_the_row() -> None:
    _, verdicts = _judge_all([_seen(0, bad=1), _seen(1, bad=1), _seen(2, tokens=0), _seen(3, bad=1)])
    assert verdicts[-1].kind is VerdictKind.INCIDENT


def test_nonfinite_weights_are_an_incident_at_once_even_in_an_empty_batch() -> None:
    _, verdicts = _judge_all([_seen(5, poisoned=True, tokens=0)])
    verdict = verdicts[0].verdict
    assert (verdict.kind, verdict.fault, verdict.onset) == (VerdictKind.INCIDENT, FaultKind.NONFINITE, 5)


def test_an_empty_batch_is_reported_and_teaches_nothing() -> None:
    state, _ = _judge_all(_curve(50))
    after, verdict = judge(state, _seen(50, loss=0.0, norm=0.0, tokens=0), POLICY)
    assert verdict.kind is VerdictKind.EMPTY
    assert not verdict.kind.applies_update
    assert after == state


def test_a_restored_state_gives_the_same_verdicts_again() -> None:
    curve = _curve(450, _raised(420, 450, loss=4.0))
    saved, _ = _judge_all(curve[:400])
    _, first = _judge_all(curve[400:], saved)
    _, again = _judge_all(curve[400:], DetectorState.from_json(json.loads(json.dumps(saved.to_json())), POLICY.rules))
    assert first == again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved | {"more": 1}, "another version"),
        (lambda saved: {"drops": saved["drops"]}, "no state of detectors"),
        (lambda saved: saved | {"rules": {"spike": {"losses": "many"}}}, "cannot be read"),
        (lambda saved: saved | {"rules": {"spike": {"of_yore": 1}}}, "rule spike differ"),
        (lambda saved: saved | {"drops": {"row": "many", "first": 0}}, "cannot be read"),
        (lambda saved: None, "no state of detectors"),
    ],
    ids=["extra", "missing", "a rule's wrong type", "a rule's extra", "wrong type", "nothing"],
)
def test_a_saved_state_that_does_not_fit_is_refused(
    change: Callable[[dict[str, object]], object], message: str
) -> None:
    with pytest.raises(StateMismatchError, match=message):
        DetectorState.from_json(change(DetectorState().to_json()), POLICY.rules)


_FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(
        st.tuples(_FLOATS | st.floats(1, 5), _FLOATS.map(abs) | st.floats(0.1, 2), st.integers(0, 1), st.booleans()),
        max_size=60,
    )
)
def test_no_sequence_of_numbers_breaks_the_detectors(rows: list[tuple[float, float, int, bool]]) -> None:
    policy = Policy(live_rules(DetectSection(spike=SpikeLimits(least=3, window=16))))
    state = DetectorState()
    for step, (loss, norm, bad, poisoned) in enumerate(rows):
        state, verdict = judge(state, _seen(step, loss, norm, bad=bad, poisoned=poisoned), policy)
        json.dumps(verdict.evidence, allow_nan=False)
        if verdict.kind is VerdictKind.INCIDENT:
            assert verdict.incident(4, step).onset <= step
    saved = json.dumps(state.to_json(), allow_nan=False)
    assert DetectorState.from_json(json.loads(saved), policy.rules) == state
    assert len(saved) < 100_000


def test_a_bad_loss_a_bad_gradient_and_a_bad_weight_are_told_apart_each_with_where_to_look() -> None:
    steps = (_seen(0, math.nan, bad=1), _seen(0, norm=math.inf, bad=3), _seen(0, poisoned=True))
    verdicts = [judge(DetectorState(), seen, POLICY)[1] for seen in steps]
    assert [verdict.evidence["what"] for verdict in verdicts] == ["loss", "gradient", "state"]
    loss, gradient, state = (verdict.reason for verdict in verdicts)
    assert loss.startswith("non-finite loss")
    assert "batch" in loss
    assert gradient.startswith("non-finite gradient")
    assert "layer" in gradient
    assert state.startswith("weights or optimizer moments")
    assert "earlier state" in state


class TestWatches:
    def test_a_gradient_norm_out_of_its_range_is_to_be_clipped_to_its_median(self) -> None:
        _, verdicts = _judge_all(_curve(400, _raised(399, 400, loss=0.0, norm=8.0)))
        last = verdicts[-1].verdict
        assert (last.kind, last.findings[0][0]) == (VerdictKind.WATCH, "norm-precursor")
        assert last.clip_to == pytest.approx(0.5, rel=0.1)

    @pytest.mark.parametrize(("on_watch", "kind"), [("skip", VerdictKind.SKIP), ("report", VerdictKind.WATCH)])
    def test_or_what_the_policy_says(self, on_watch: Literal["skip", "report"], kind: VerdictKind) -> None:
        policy = Policy(on_watch=on_watch)
        _, verdicts = _judge_all(_curve(400, _raised(399, 400, loss=0.0, norm=8.0)), policy=policy)
        assert (verdicts[-1].kind, verdicts[-1].verdict.clip_to) == (kind, math.inf)

    def test_a_loss_outlier_is_watched_and_its_update_applied_as_it_is(self) -> None:
        _, verdicts = _judge_all(_curve(400, _raised(399, 400, loss=1.5)))
        assert (verdicts[-1].kind, verdicts[-1].verdict.clip_to) == (VerdictKind.WATCH, math.inf)

    def test_one_rank_out_of_its_share_is_told_and_the_step_stays_healthy(self) -> None:
        noise, state, last = random.Random(1), DetectorState(), None
        for step in range(110):
            losses = [3.0 + noise.gauss(0.0, 0.05) for _ in range(4)]
            losses[2] += 1.5 if step >= 105 else 0.0
            seen = replace(_seen(step, 3.0), rank_losses=tuple(losses), rank_norms=(1.0, 1.0, 1.0, 1.0))
            state, last = judge(state, seen, POLICY)
        assert last is not None
        assert (last.kind, last.findings[0][0], last.rank.rank) == (VerdictKind.HEALTHY, "ranks", 2)

    def test_or_an_incident_where_the_policy_says_so(self) -> None:
        noise, state, kinds = random.Random(1), DetectorState(), []
        policy = Policy(ranks=RanksLimits(incident_steps=4))
        for step in range(110):
            losses = [3.0 + noise.gauss(0.0, 0.05) for _ in range(4)]
            losses[2] += 1.5 if step >= 105 else 0.0
            seen = replace(_seen(step, 3.0), rank_losses=tuple(losses), rank_norms=(1.0, 1.0, 1.0, 1.0))
            state, verdict = judge(state, seen, policy)
            kinds.append(verdict.fault)
        assert kinds[108:] == [FaultKind.RANK_OUTLIER] * 2
        assert set(kinds[:108]) == {None}


class TestSlowTrouble:
    def test_a_loss_that_climbs_slowly_is_an_incident_that_began_about_where_it_was_lowest(self) -> None:
        _, verdicts = _judge_all(_curve(1200, lambda step, point: (point[0] + max(0, step - 800) / 500, point[1])))
        step, first = _first_incident(verdicts)
        assert first.fault is FaultKind.DIVERGENCE
        assert 900 < step < 1050
        assert first.onset is not None
        assert 750 <= first.onset <= 900

    def test_a_plateau_that_jumps_is_one_that_began_with_the_jump(self) -> None:
        limits = DetectSection.model_validate({"spike": {"z": 100.0, "severe_z": 200.0}})
        policy = Policy(live_rules(limits))
        _, verdicts = _judge_all(_curve(500, _raised(400, 500, loss=0.5)), policy=policy)
        step, first = _first_incident(verdicts)
        assert first.fault is FaultKind.DIVERGENCE
        assert first.onset is not None
        assert step - 20 <= first.onset <= 401

    def test_of_several_incidents_at_one_step_the_first_rule_names_it_and_the_others_are_evidence(self) -> None:
        _, verdicts = _judge_all(_curve(500, _raised(400, 500, loss=4.0)))
        _, first = _first_incident(verdicts)
        assert first.evidence["detector"] == first.findings[0][0]
        assert all(name in str(first.evidence["also"]) for name, _ in first.findings[1:])


class TestRestarts:
    def _jumps_after_restart(self, *, unproven: bool) -> list[Judged]:
        curve = _curve(300, _raised(250, 300, loss=1.2, norm=20.0))
        curve[250] = replace(curve[250], restart=unproven)
        return _judge_all(curve[:252])[1]

    def test_a_jump_right_after_a_load_that_nothing_proves_is_a_resume_fault(self) -> None:
        step, first = _first_incident(self._jumps_after_restart(unproven=True))
        assert (step, first.fault, first.onset) == (250, FaultKind.RESUME_FAULT, 250)

    def test_the_same_jump_without_a_load_is_none(self) -> None:
        assert _kinds(self._jumps_after_restart(unproven=False), VerdictKind.INCIDENT) == []

    def test_a_restart_on_the_steep_descent_of_a_young_run_is_no_fault(self) -> None:
        curve = _curve(120)
        curve[10] = replace(curve[10], restart=True)
        assert _kinds(_judge_all(curve)[1], VerdictKind.INCIDENT) == []


def test_an_incident_becomes_the_message_for_the_supervisor() -> None:
    _, verdicts = _judge_all([_seen(step, bad=2) for step in range(3)])
    message = verdicts[-1].verdict.incident(generation=7, step=2)
    assert (message.generation, message.step, message.onset, message.kind) == (7, 2, 0, FaultKind.NONFINITE)


def test_a_healthy_verdict_is_no_incident() -> None:
    with pytest.raises(ValueError, match="healthy verdict is no incident"):
        judge(DetectorState(), _seen(0), POLICY)[1].incident(0, 0)


def test_every_kind_survives_the_broadcast_as_a_small_integer() -> None:
    assert [VerdictKind.from_code(kind.code) for kind in VerdictKind] == list(VerdictKind)
    with pytest.raises(ValueError, match="9 is no verdict"):
        VerdictKind.from_code(9)
