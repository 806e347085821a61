"""What a run waits for before its first step."""

from __future__ import annotations

import pytest

from stormsail.platform.messages import Phase
from stormsail.supervisor.watch.hang import Limits, Progress, Watched
from stormsail.supervisor.watch.waiting import Wait, describe, describe_evaluation

LIMITS = Limits(step_s=300.0, other_s=600.0)


def at(**phases: Phase) -> Watched:
    """Ranks 0, 1, ... each in a phase since its own second."""
    return Watched({rank: Progress(phase, -1, float(rank), 50.0) for rank, phase in enumerate(phases.values())})


def wait(watched: Watched, joined: int = 2) -> Wait:
    return describe(watched, LIMITS, joined=joined, expected=2, begun_s=0.0, now_s=50.0)


def test_processes_that_have_not_joined_are_counted() -> None:
    assert wait(at(a=Phase.JOIN), joined=1) == Wait("worker processes: 1 of 2 have joined", 50.0, 550.0)


@pytest.mark.parametrize(
    ("phases", "what", "left_s"),
    [
        ((Phase.STEP, Phase.LOAD), "rank 1 to load the state", 551.0),
        ((Phase.JOIN, Phase.LOAD), "rank 0 to meet the others", 550.0),
        ((Phase.STEP, Phase.STEP), "rank 0 to finish its first step", 250.0),
    ],
)
def test_the_rank_that_is_furthest_behind_is_named(phases: tuple[Phase, Phase], what: str, left_s: float) -> None:
    found = wait(at(a=phases[0], b=phases[1]))
    assert (found.what, found.left_s) == (what, left_s)


def test_silence_is_a_wait_too_and_never_longer_than_its_limit() -> None:
    assert wait(Watched()).what == "the workers to say where they are"
    late = describe(Watched(), LIMITS, joined=2, expected=2, begun_s=0.0, now_s=1e9)
    assert late.left_s == 0.0


def test_an_evaluation_is_waited_for_since_the_first_rank_began_it() -> None:
    assert describe_evaluation(at(a=Phase.STEP, b=Phase.SAVE), LIMITS, now_s=50.0) is None
    watched = Watched({0: Progress(Phase.EVALUATE, 20, 30.0, 50.0), 1: Progress(Phase.EVALUATE, 20, 28.0, 50.0)})
    limits = Limits(step_s=300.0, other_s=600.0, eval_s=100.0)
    assert describe_evaluation(watched, limits, now_s=50.0) == Wait("the evaluation after step 20", 22.0, 78.0)


def test_every_phase_but_the_last_has_its_words() -> None:
    for phase in set(Phase) - {Phase.DONE}:
        assert wait(Watched({0: Progress(phase, 3, 40.0, 50.0)})).what.startswith("rank 0 to ")
