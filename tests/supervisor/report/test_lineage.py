"""Which computed steps the run still holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.tape import Tape

from stormsail.platform.messages import CheckpointRef
from stormsail.supervisor.report.fields import read_rows
from stormsail.supervisor.report.lineage import Lineage, sort_out


def sorted_out(tape: Tape) -> Lineage:
    return sort_out(tape.events, read_rows(tape.rows))


def test_a_quiet_run_holds_all_its_steps() -> None:
    tape = Tape()
    tape.born()
    tape.steps(0, 9)
    lineage = sorted_out(tape)
    assert (len(lineage.live), len(lineage.first), lineage.again) == (10, 10, ())


def test_after_a_resume_the_younger_generation_holds_the_repeated_steps() -> None:
    tape = Tape()
    tape.born()
    tape.steps(0, 9)
    tape.born(CheckpointRef(1, 5))
    tape.steps(5, 12)
    lineage = sorted_out(tape)
    assert [row.generation for row in lineage.live] == [1] * 5 + [2] * 8
    assert lineage.repeats == {1: 0, 2: 5}
    assert len(lineage.first) == 13
    assert [(row.generation, row.step) for row in lineage.again] == [(2, step) for step in range(5, 10)]


def test_the_line_holds_the_state_that_it_was_left_with_and_none_beyond() -> None:
    tape = Tape()
    tape.born()
    tape.steps(0, 9)
    tape.born(CheckpointRef(1, 5))
    tape.steps(5, 12)
    lineage = sorted_out(tape)
    assert [lineage.holds(1, 5), lineage.holds(1, 6), lineage.holds(2, 6), lineage.holds(3, 6)] == [
        True,
        False,
        True,
        False,
    ]


def test_a_generation_that_was_left_aside_is_not_on_the_line() -> None:
    tape = Tape()
    tape.born()
    tape.steps(0, 19)
    tape.born(CheckpointRef(1, 10))
    tape.steps(10, 14)
    tape.born(CheckpointRef(1, 5))
    tape.steps(5, 6)
    lineage = sorted_out(tape)
    assert [(row.generation, row.step) for row in lineage.live][4:] == [(1, 4), (3, 5), (3, 6)]


def test_steps_that_were_thrown_away_and_not_done_again_are_not_productive() -> None:
    tape = Tape()
    tape.born()
    tape.steps(0, 9)
    tape.born(CheckpointRef(1, 4))
    lineage = sorted_out(tape)
    assert (len(lineage.first), len(lineage.again), sum(lineage.repeats.values())) == (4, 6, 0)


def test_a_start_from_the_initial_state_leaves_everything_behind() -> None:
    tape = Tape()
    tape.born()
    tape.steps(0, 3)
    tape.born()
    tape.steps(0, 1)
    assert [row.generation for row in sorted_out(tape).live] == [2, 2]


def test_rows_without_any_generation_event_are_all_there_is() -> None:
    tape = Tape()
    tape.steps(0, 3)
    assert len(sorted_out(tape).live) == 4


def test_a_parent_that_is_not_older_ends_the_line() -> None:
    tape = Tape()
    tape.born(CheckpointRef(5, 0))
    tape.steps(0, 3)
    assert len(sorted_out(tape).live) == 4


def test_nothing_at_all_is_an_empty_line() -> None:
    assert sort_out([], []).live == ()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=6))
def test_the_live_line_has_each_step_once_and_no_row_is_lost(story: list[tuple[int, int]]) -> None:
    tape, reached = Tape(), {0: 0}
    tape.born()
    tape.steps(0, 9)
    reached[1] = 10
    for back, count in story:
        parent = tape.generation
        fork = max(0, reached[parent] - back)
        tape.born(CheckpointRef(parent, fork))
        tape.steps(fork, fork + count - 1)
        reached[tape.generation] = fork + count
    lineage = sorted_out(tape)
    assert [row.step for row in lineage.live] == list(range(reached[tape.generation]))
    assert len(lineage.first) + len(lineage.again) == len(tape.rows)
    assert {row.step for row in lineage.first} == {row.step for row in lineage.live}
