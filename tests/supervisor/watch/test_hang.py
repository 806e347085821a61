"""Who is stuck: a living process is no progress."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.config.hang import HangSection
from stormsail.platform.messages import Heartbeat, Phase
from stormsail.supervisor.watch.hang import LEARNED, Limits, Progress, Watched, find_stuck, observe

LIMITS = Limits(step_s=10.0, other_s=100.0, eval_s=50.0)


def beat(rank: int = 0, phase: Phase = Phase.STEP, step: int = 5) -> Heartbeat:
    return Heartbeat(1, 1, rank, phase, step)


def test_heartbeats_from_the_same_place_do_not_make_a_rank_younger() -> None:
    known = observe(Watched(), beat(), 0.0)
    known = observe(known, beat(), 9.0)
    assert known.ranks == {0: Progress(Phase.STEP, 5, 0.0, 9.0)}


@pytest.mark.parametrize("moved", [beat(step=6), beat(phase=Phase.SAVE)])
def test_another_step_or_phase_starts_the_clock_again(moved: Heartbeat) -> None:
    known = observe(observe(Watched(), beat(), 0.0), moved, 9.0)
    assert known.ranks[0].since_s == 9.0


def test_nobody_is_stuck_at_the_limit_and_somebody_is_beyond_it() -> None:
    known = observe(Watched(), beat(), 0.0)
    known = observe(known, beat(), 10.0)
    assert find_stuck(known, LIMITS, 10.0) is None
    stuck = find_stuck(known, LIMITS, 10.5)
    assert stuck is not None
    assert stuck.reason == "rank 0 has been in phase step of step 5 for 10 s, the limit is 10 s"


@pytest.mark.parametrize(
    "phase", [Phase.START, Phase.JOIN, Phase.BUILD, Phase.LOAD, Phase.SAVE, Phase.FINISH, Phase.CONSULT]
)
def test_building_loading_and_saving_have_a_limit_of_their_own(phase: Phase) -> None:
    known = observe(Watched(), beat(phase=phase), 0.0)
    assert find_stuck(known, LIMITS, 99.0) is None
    assert find_stuck(known, LIMITS, 101.0) is not None


def test_an_evaluation_has_a_limit_of_its_own_and_the_finding_names_it() -> None:
    known = observe(observe(Watched(), beat(phase=Phase.EVALUATE), 0.0), beat(phase=Phase.EVALUATE), 50.0)
    assert find_stuck(known, LIMITS, 50.0) is None
    stuck = find_stuck(known, LIMITS, 51.0)
    assert stuck is not None
    assert stuck.reason == "rank 0 has been in phase evaluate of step 5 for 51 s, the limit is 50 s"


def test_a_rank_that_is_done_is_never_stuck() -> None:
    assert find_stuck(observe(Watched(), beat(phase=Phase.DONE), 0.0), LIMITS, 1e9) is None


def test_the_one_that_is_farthest_beyond_its_limit_is_named() -> None:
    known = observe(Watched(), beat(0, Phase.BUILD), 0.0)
    known = observe(known, beat(1), 80.0)
    known = observe(known, beat(2), 85.0)
    stuck = find_stuck(known, LIMITS, 110.0)
    assert stuck is not None
    assert stuck.rank == 1


@given(st.lists(st.floats(0, 9), max_size=20))
def test_a_rank_that_reaches_a_new_step_within_the_limit_is_never_stuck(pauses_s: list[float]) -> None:
    known = Watched()
    now_s = 0.0
    for step, pause_s in enumerate(pauses_s):
        known = observe(known, beat(step=step), now_s)
        now_s += pause_s
        assert find_stuck(known, LIMITS, now_s) is None


def test_the_silent_rank_is_named_before_those_that_wait_for_it() -> None:
    known = observe(observe(Watched(), beat(1), 0.0), beat(0), 1.0)
    for now_s in range(2, 21):
        known = observe(known, beat(0), float(now_s))
    stuck = find_stuck(known, LIMITS, 20.5)
    assert stuck is not None
    assert stuck.rank == 1
    assert "nothing was heard of it for 20 s" in stuck.reason


LEARNING = Limits(step_s=300.0, other_s=600.0, eval_s=500.0, factor=10.0, floor_s=60.0)


def walked(steps: int, pace_s: float) -> Watched:
    known = Watched()
    for step in range(steps + 1):
        known = observe(known, beat(step=step), step * pace_s)
    return known


@pytest.mark.parametrize(
    ("steps", "pace_s", "limit_s"),
    [
        (LEARNING.learn_steps - 1, 1.0, 300.0),  # too few to know
        (LEARNING.learn_steps, 1.0, 60.0),  # the floor
        (LEARNING.learn_steps, 8.0, 80.0),
        (LEARNING.learn_steps, 40.0, 300.0),  # never beyond what is configured
    ],
)
def test_the_limit_of_a_step_is_learned_from_the_longest_one(steps: int, pace_s: float, limit_s: float) -> None:
    assert walked(steps, pace_s).limit_s(Phase.STEP, LEARNING) == limit_s


def test_a_save_teaches_nothing_about_steps() -> None:
    known = observe(observe(Watched(), beat(phase=Phase.SAVE), 0.0), beat(step=6), 500.0)
    assert Phase.STEP not in known.stays


def saved(count: int, save_s: float, phase: Phase = Phase.SAVE) -> Watched:
    known, now_s = Watched(), 0.0
    for step in range(count):
        known = observe(known, beat(step=step, phase=phase), now_s)
        known = observe(known, beat(step=step), now_s + save_s)
        now_s += save_s + 1.0
    return known


@pytest.mark.parametrize(
    ("count", "save_s", "limit_s"),
    [
        (LEARNING.learn_steps - 1, 1.0, 600.0),  # too few to know
        (LEARNING.learn_steps, 1.0, 60.0),  # the floor
        (LEARNING.learn_steps, 35.0, 350.0),  # a slow save may take longer than any step
        (LEARNING.learn_steps, 100.0, 600.0),  # never beyond what it was before
    ],
)
def test_the_limit_of_a_save_is_learned_too(count: int, save_s: float, limit_s: float) -> None:
    assert saved(count, save_s).limit_s(Phase.SAVE, LEARNING) == limit_s


@pytest.mark.parametrize(
    ("count", "eval_s", "limit_s"),
    [
        (LEARNING.learn_steps - 1, 1.0, 500.0),
        (LEARNING.learn_steps, 1.0, 60.0),
        (LEARNING.learn_steps, 35.0, 350.0),
        (LEARNING.learn_steps, 100.0, 500.0),
    ],
)
def test_and_so_is_that_of_an_evaluation(count: int, eval_s: float, limit_s: float) -> None:
    known = saved(count, eval_s, Phase.EVALUATE)
    assert known.limit_s(Phase.EVALUATE, LEARNING) == limit_s
    assert known.limit_s(Phase.SAVE, LEARNING) == 600.0


@given(st.lists(st.tuples(st.sampled_from(Phase), st.floats(0, 1000)), max_size=60))
def test_a_learned_limit_is_never_beyond_the_fixed_one_and_leaves_room_for_what_was_seen(
    stays: list[tuple[Phase, float]],
) -> None:
    known, now_s, longest = Watched(), 0.0, dict.fromkeys(Phase, 0.0)
    for step, (phase, stay_s) in enumerate(stays):
        known = observe(known, beat(step=step, phase=phase), now_s)
        now_s += stay_s
        longest[phase] = max(longest[phase], stay_s if step < len(stays) - 1 else 0.0)
    for phase in Phase:
        most_s = {Phase.STEP: LEARNING.step_s, Phase.EVALUATE: LEARNING.eval_s}.get(phase, LEARNING.other_s)
        limit_s = known.limit_s(phase, LEARNING)
        assert min(most_s, max(LEARNING.floor_s, longest[phase] * 9.99)) <= limit_s <= most_s
        assert phase in LEARNED or limit_s == most_s


def test_another_generation_learns_anew_because_it_may_compute_in_another_precision() -> None:
    known = walked(LEARNING.learn_steps, 1.0)
    known = observe(known, Heartbeat(1, 2, 0, Phase.LOAD, 5), 100.0)
    assert known.limit_s(Phase.STEP, LEARNING) == 300.0
    assert known.ranks[0].since_s == 100.0


def test_without_a_word_the_configurations_limits_are_the_rules_own() -> None:
    assert Limits.of(HangSection(), step_s=300.0, other_s=600.0, eval_s=500.0) == LEARNING


def test_what_is_silence_and_how_soon_a_limit_is_learned_are_settings() -> None:
    told = HangSection(learn_steps=3, silent_s=30.0)
    limits = Limits.of(told, step_s=300.0, other_s=600.0, eval_s=500.0)
    known = walked(3, 1.0)
    assert known.limit_s(Phase.STEP, limits) == 60.0
    last = max(at.heard_s for at in known.ranks.values())
    for later_s, silent in ((320.0, True), (20.0, False)):
        ranks = {rank: replace(at, since_s=last - 400.0) for rank, at in known.ranks.items()}
        stuck = find_stuck(replace(known, ranks=ranks), limits, last + later_s)
        assert stuck is not None
        assert ("nothing was heard" in stuck.reason) == silent
