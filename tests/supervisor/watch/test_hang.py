"""Who is stuck: a living process is no progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.messages import Heartbeat, Phase
from stormsail.supervisor.watch.hang import Limits, Progress, find_stuck, observe

LIMITS = Limits(step_s=10.0, other_s=100.0)


def beat(rank: int = 0, phase: Phase = Phase.STEP, step: int = 5) -> Heartbeat:
    return Heartbeat(1, 1, rank, phase, step)


def test_heartbeats_from_the_same_place_do_not_make_a_rank_younger() -> None:
    known = observe({}, beat(), 0.0)
    known = observe(known, beat(), 9.0)
    assert known == {0: Progress(Phase.STEP, 5, 0.0)}


@pytest.mark.parametrize("moved", [beat(step=6), beat(phase=Phase.SAVE)])
def test_another_step_or_phase_starts_the_clock_again(moved: Heartbeat) -> None:
    known = observe(observe({}, beat(), 0.0), moved, 9.0)
    assert known[0].since_s == 9.0


def test_nobody_is_stuck_at_the_limit_and_somebody_is_beyond_it() -> None:
    known = observe({}, beat(), 0.0)
    assert find_stuck(known, LIMITS, 10.0) is None
    stuck = find_stuck(known, LIMITS, 10.5)
    assert stuck is not None
    assert stuck.reason == "rank 0 has been in phase step of step 5 for 10 s, the limit is 10 s"


@pytest.mark.parametrize("phase", [Phase.START, Phase.JOIN, Phase.BUILD, Phase.LOAD, Phase.SAVE, Phase.CONSULT])
def test_building_loading_and_saving_have_a_limit_of_their_own(phase: Phase) -> None:
    known = observe({}, beat(phase=phase), 0.0)
    assert find_stuck(known, LIMITS, 99.0) is None
    assert find_stuck(known, LIMITS, 101.0) is not None


def test_a_rank_that_is_done_is_never_stuck() -> None:
    assert find_stuck(observe({}, beat(phase=Phase.DONE), 0.0), LIMITS, 1e9) is None


def test_the_one_that_is_farthest_beyond_its_limit_is_named() -> None:
    known = observe({}, beat(0, Phase.BUILD), 0.0)
    known = observe(known, beat(1), 80.0)
    known = observe(known, beat(2), 85.0)
    stuck = find_stuck(known, LIMITS, 110.0)
    assert stuck is not None
    assert stuck.rank == 1


@given(st.lists(st.floats(0, 9), max_size=20))
def test_a_rank_that_reaches_a_new_step_within_the_limit_is_never_stuck(pauses_s: list[float]) -> None:
    known: dict[int, Progress] = {}
    now_s = 0.0
    for step, pause_s in enumerate(pauses_s):
        known = observe(known, beat(step=step), now_s)
        now_s += pause_s
        assert find_stuck(known, LIMITS, now_s) is None
