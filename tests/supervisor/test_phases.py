"""The phases of a run: legal dialogues, illegal pairs, and the diagram."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.errors import InternalError
from stormsail.supervisor.phases import START, TRANSITIONS, RunEvent, RunPhase, advance, diagram

PAIRS = [(phase, event) for phase in RunPhase for event in RunEvent]
ILLEGAL = [(phase, event) for phase, event in PAIRS if event not in TRANSITIONS[phase]]


def talk(*events: RunEvent) -> list[RunPhase]:
    phase = START
    phases = []
    for event in events:
        phase = advance(phase, event)
        phases.append(phase)
    return phases


def test_a_quiet_run_waits_starts_runs_and_is_done() -> None:
    assert talk(RunEvent.RESOURCES_READY, RunEvent.STEPPING, RunEvent.FINISHED) == [
        RunPhase.STARTING,
        RunPhase.RUNNING,
        RunPhase.DONE,
    ]


def test_a_lost_process_leads_through_recovery_and_a_new_start() -> None:
    assert talk(
        RunEvent.RESOURCES_READY,
        RunEvent.STEPPING,
        RunEvent.FAULT,
        RunEvent.RESTART,
        RunEvent.RESOURCES_READY,
        RunEvent.STEPPING,
    )[2:] == [RunPhase.RECOVERING, RunPhase.WAITING, RunPhase.STARTING, RunPhase.RUNNING]


def test_a_rollback_leads_back_to_running_without_a_new_start() -> None:
    assert talk(RunEvent.RESOURCES_READY, RunEvent.STEPPING, RunEvent.FAULT, RunEvent.STEPPING)[-1] is RunPhase.RUNNING


def test_an_fp32_replay_is_a_phase_of_its_own_until_it_ends() -> None:
    assert talk(
        RunEvent.RESOURCES_READY, RunEvent.STEPPING, RunEvent.FAULT, RunEvent.REPLAY_BEGUN, RunEvent.REPLAY_ENDED
    )[-2:] == [RunPhase.REPLAYING, RunPhase.RUNNING]


def test_a_fault_during_recovery_stays_in_recovery() -> None:
    assert advance(RunPhase.RECOVERING, RunEvent.FAULT) is RunPhase.RECOVERING


def test_a_used_up_ladder_ends_the_run() -> None:
    assert advance(RunPhase.RECOVERING, RunEvent.LADDER_USED_UP) is RunPhase.EXHAUSTED


def test_a_fault_while_stopping_does_not_start_a_repair() -> None:
    assert advance(RunPhase.STOPPING, RunEvent.FAULT) is RunPhase.STOPPING


@pytest.mark.parametrize("phase", [phase for phase in RunPhase if not phase.terminal])
def test_a_stop_is_honoured_in_every_phase_that_is_not_over(phase: RunPhase) -> None:
    assert advance(phase, RunEvent.STOP_ASKED) in {RunPhase.STOPPING, RunPhase.STOPPED}


@pytest.mark.parametrize(("phase", "event"), ILLEGAL)
def test_an_illegal_pair_raises_and_names_both(phase: RunPhase, event: RunEvent) -> None:
    with pytest.raises(InternalError) as caught:
        advance(phase, event)
    assert f"'{phase}'" in str(caught.value)
    assert f"'{event}'" in str(caught.value)


def test_exactly_the_four_ends_are_terminal() -> None:
    assert {phase for phase in RunPhase if phase.terminal} == {
        RunPhase.DONE,
        RunPhase.STOPPED,
        RunPhase.EXHAUSTED,
        RunPhase.FAILED,
    }


def test_every_phase_can_be_reached_from_the_start() -> None:
    seen = {START}
    for _ in RunPhase:
        seen |= {following for phase in seen for following in TRANSITIONS[phase].values()}
    assert seen == set(RunPhase)


def test_from_every_phase_an_end_can_be_reached() -> None:
    ends = {phase for phase in RunPhase if phase.terminal}
    for _ in RunPhase:
        ends |= {phase for phase in RunPhase if set(TRANSITIONS[phase].values()) & ends}
    assert ends == set(RunPhase)


def test_every_event_happens_somewhere() -> None:
    assert {event for row in TRANSITIONS.values() for event in row} == set(RunEvent)


def test_the_diagram_has_one_line_for_each_transition_start_and_end() -> None:
    lines = diagram().splitlines()
    transitions = sum(len(row) for row in TRANSITIONS.values())
    ends = sum(phase.terminal for phase in RunPhase)
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == 2 + transitions + ends
    assert "    recovering --> exhausted: ladder_used_up" in lines


@given(st.lists(st.sampled_from(list(RunEvent)), max_size=40))
def test_no_dialogue_leaves_a_terminal_phase(events: list[RunEvent]) -> None:
    phase = START
    for event in events:
        if phase.terminal:
            with pytest.raises(InternalError):
                advance(phase, event)
        elif event in TRANSITIONS[phase]:
            phase = advance(phase, event)
