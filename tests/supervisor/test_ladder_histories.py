"""What must hold of the recovery ladder in every history."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ladder_run import POLICY, Run, running

from stormsail.platform.messages import FaultKind, Tier
from stormsail.supervisor.ladder import CandidateCheckpoint, LadderState, decide
from stormsail.workers.schedule import lr_factor

fault_kinds = st.sampled_from(list(FaultKind))


@dataclass(frozen=True)
class Fail:
    """A fault some steps ahead of where the run is."""

    kind: FaultKind
    ahead: int
    back: int


@dataclass(frozen=True)
class Steps:
    """Some steps are done."""

    count: int
    healthy: bool


@dataclass(frozen=True)
class Save:
    """A checkpoint is committed."""

    good: bool


moves = st.lists(
    st.one_of(
        st.builds(Fail, kind=fault_kinds, ahead=st.integers(0, 12), back=st.integers(0, 10)),
        st.builds(Steps, count=st.integers(1, 80), healthy=st.booleans()),
        st.builds(Save, good=st.booleans()),
    ),
    max_size=40,
)


def play(story: list[Fail | Steps | Save]) -> Run:
    """Play a story to its end, or to the end of the ladder."""
    run, at = Run(), 0
    run.steps(0, 0)
    for move in story:
        match move:
            case Fail(kind, ahead, back):
                decision = run.fault(kind, at + ahead, max(0, at + ahead - back), signature=str(kind))
                at = decision.restore.step if decision.restore else 0
                if decision.stop_exit_code is not None:
                    return run
            case Steps(count, healthy):
                run.steps(at, at + count - 1, healthy=healthy)
                at += count
            case Save(good):
                run.saved(at, good=good)
    return run


@given(moves)
def test_a_journalled_state_gives_the_same_verdicts_again(story: list[Fail | Steps | Save]) -> None:
    run = play(story)
    for (state, fault, candidates, events, generation), decision in zip(run.asked, run.decisions, strict=True):
        again = decide(
            LadderState.from_json(json.loads(json.dumps(state.to_json()))),
            fault,
            candidates,
            POLICY,
            events,
            run_precision="bf16",
            generation=generation,
        )
        assert again == decision


@given(moves, st.integers(0, 500))
def test_the_learning_rate_is_never_below_the_floor_and_no_event_is_ever_lost(
    story: list[Fail | Steps | Save], step: int
) -> None:
    run = play(story)
    assert lr_factor(step, run.events, floor=0.0, ramp_steps=1000) + 1e-9 >= 0.5
    counts = [len(decision.lr_events) for decision in run.decisions]
    assert counts == sorted(counts)


@given(moves)
def test_inside_a_numeric_episode_only_good_states_from_before_the_onset_are_loaded(
    story: list[Fail | Steps | Save],
) -> None:
    run = play(story)
    for (_, _, candidates, _, _), decision in zip(run.asked, run.decisions, strict=True):
        numeric = decision.state.numeric
        if numeric is not None and decision.restore is not None:
            assert decision.restore.step <= numeric.onset
            assert CandidateCheckpoint(decision.restore, good=True) in candidates


@given(st.lists(st.tuples(fault_kinds, st.integers(-1, 60)), min_size=30, max_size=30))
@settings(max_examples=50)
def test_without_progress_every_sequence_of_faults_ends(faults: list[tuple[FaultKind, int]]) -> None:
    run = running()
    for kind, step in faults:
        if run.fault(kind, max(step, 0) if kind.numeric else step, signature="same").stop_exit_code is not None:
            break
    assert run.decisions[-1].stop_exit_code in {4, 6}
    assert len(run.decisions) <= 8


@given(st.lists(st.integers(1, 30), min_size=60, max_size=60))
@settings(max_examples=20)
def test_small_progress_between_faults_does_not_make_the_series_endless(gains: list[int]) -> None:
    run, at = running(replace(POLICY, episodes_per_hour=1000)), 60
    for gain in gains:
        run.steps(at, at + gain)
        at += gain + 1
        if run.fault(FaultKind.PROCESS, at).stop_exit_code is not None:
            break
    assert run.decisions[-1].stop_exit_code == 4


@given(st.lists(st.integers(2, 40), min_size=1, max_size=5))
def test_unrelated_node_deaths_never_leave_tier_1(gaps: list[int]) -> None:
    run, at = running(), 57
    for gap in gaps:
        run.steps(at, at + gap)
        at += gap + 1
        decision = run.fault(FaultKind.PROCESS, at)
        assert (decision.tier, decision.lr_events) == (Tier.RESUME, ())
