"""Which checkpoint a repair starts from, and when one becomes good."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.messages import CheckpointRef
from stormsail.supervisor.candidates import CandidateCheckpoint, Wish, choose, promote


def line(*steps: int, good: bool = True) -> tuple[CandidateCheckpoint, ...]:
    return tuple(CandidateCheckpoint(CheckpointRef(1, step), good) for step in steps)


def test_the_newest_is_taken_where_anything_will_do() -> None:
    assert choose(line(10, 20, 30), Wish(before=None, good_only=False)).step == 30


def test_a_checkpoint_at_the_onset_lies_before_it() -> None:
    assert choose(line(40, 50, 60), Wish(before=50, good_only=True)).step == 50


def test_a_state_that_is_not_known_good_is_not_taken_where_a_good_one_is_asked_for() -> None:
    candidates = (*line(10, 20), *line(30, good=False))
    assert choose(candidates, Wish(before=35, good_only=True)).step == 20


def test_of_two_commits_at_one_step_the_later_generation_is_taken() -> None:
    twice = (CandidateCheckpoint(CheckpointRef(3, 20), good=True), *line(20))
    assert choose(twice, Wish(before=None, good_only=True)).ref == CheckpointRef(3, 20)


def test_without_any_checkpoint_the_initial_state_is_taken_and_said_to_be() -> None:
    choice = choose((), Wish(before=None, good_only=False))
    assert choice.ref is None
    assert choice.note == "there is no checkpoint"


def test_without_a_good_checkpoint_before_the_onset_the_initial_state_is_taken() -> None:
    choice = choose(line(10, good=False), Wish(before=15, good_only=True))
    assert choice.ref is None
    assert choice.note == "there is no good checkpoint that old"


def test_the_way_back_is_at_least_as_long_as_asked_for() -> None:
    assert choose(line(10, 20, 30, 40, 50), Wish(before=55, good_only=True, back_steps=20)).step == 30


def test_in_a_young_run_the_initial_state_is_the_oldest_candidate() -> None:
    choice = choose(line(10, 20), Wish(before=25, good_only=True, back_steps=100))
    assert choice.ref is None
    assert choice.note == "the run is younger than 100 steps"


def test_a_long_run_is_not_thrown_away_for_a_few_missing_steps() -> None:
    choice = choose(line(49_950, 49_990), Wish(before=50_000, good_only=True, back_steps=100))
    assert choice.step == 49_950
    assert "nothing lies 100 steps back" in choice.note


def test_only_an_older_one_will_do_where_one_was_tried() -> None:
    assert choose(line(30, 40, 50), Wish(before=55, good_only=True, older_than=50)).step == 40


def test_where_none_is_older_the_initial_state_is_taken() -> None:
    choice = choose(line(50), Wish(before=None, good_only=False, older_than=50))
    assert choice.ref is None
    assert choice.note == "no older checkpoint is left"


def test_nothing_is_older_than_the_initial_state() -> None:
    choice = choose(line(50), Wish(before=55, good_only=True, older_than=0))
    assert choice.ref is None
    assert choice.note == "nothing is older than the initial state"


def test_a_banned_checkpoint_is_passed_over_and_named() -> None:
    choice = choose(line(40, 50), Wish(before=None, good_only=False, banned={CheckpointRef(1, 50)}))
    assert choice.step == 40
    assert "passing over step 50 (generation 1)" in choice.note


def test_a_checkpoint_becomes_good_after_its_healthy_steps() -> None:
    candidates = line(30, 40, 50, good=False)
    assert promote(candidates, healthy_step=58, episode_open=False, good_after_steps=20) == (CheckpointRef(1, 30),)
    assert promote(candidates, healthy_step=59, episode_open=False, good_after_steps=20) == (
        CheckpointRef(1, 30),
        CheckpointRef(1, 40),
    )


def test_inside_a_numeric_episode_nothing_becomes_good() -> None:
    assert promote(line(30, good=False), healthy_step=999, episode_open=True, good_after_steps=20) == ()


def test_what_is_good_already_is_not_promoted_again() -> None:
    assert promote(line(30), healthy_step=999, episode_open=False, good_after_steps=20) == ()


def test_before_the_first_healthy_step_only_a_checkpoint_at_step_0_with_no_wait_is_good() -> None:
    candidates = line(0, 10, good=False)
    assert promote(candidates, healthy_step=-1, episode_open=False, good_after_steps=0) == (CheckpointRef(1, 0),)


candidate_lists = st.lists(
    st.builds(
        CandidateCheckpoint,
        ref=st.builds(CheckpointRef, generation=st.integers(1, 4), step=st.integers(0, 400)),
        good=st.booleans(),
    ),
    max_size=12,
)


@given(candidate_lists, st.integers(0, 400), st.integers(0, 200), st.none() | st.integers(0, 400))
def test_a_choice_is_good_before_the_onset_and_older_than_what_was_tried(
    candidates: list[CandidateCheckpoint], before: int, back_steps: int, older_than: int | None
) -> None:
    wish = Wish(before=before, good_only=True, back_steps=back_steps, older_than=older_than)
    choice = choose(candidates, wish)
    assert choice == choose(candidates[::-1], wish)
    if choice.ref is not None:
        assert CandidateCheckpoint(choice.ref, good=True) in candidates
        assert choice.step <= before
        assert older_than is None or choice.step < older_than


def test_flagged_steps_start_the_count_of_healthy_ones_anew() -> None:
    def good_at(healthy_step: int) -> tuple[CheckpointRef, ...]:
        return promote(
            line(30, good=False), healthy_step=healthy_step, last_unhealthy=34, episode_open=False, good_after_steps=5
        )

    assert good_at(35) == ()
    assert good_at(38) == ()
    assert good_at(39) == (CheckpointRef(1, 30),)
