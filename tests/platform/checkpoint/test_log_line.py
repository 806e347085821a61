"""Only the live line's log is replayed, without a gap and by all ranks, and only what nobody needs is deleted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.keys import log_key, log_place
from stormsail.platform.checkpoint.lines import Generation
from stormsail.platform.checkpoint.log_line import logged, reach, spare
from stormsail.platform.messages import LogSpan


def begin(number: int, parent: int | None = None, fork_step: int = 0) -> Generation:
    return Generation(number, parent, fork_step, "test", "a", 1.0)


def keys(generation: int, first: int, stop: int, *, ranks: int = 2) -> list[str]:
    return [log_key(generation, step, rank) for step in range(first, stop) for rank in range(ranks)]


ONE = [begin(1)]


def spans(generations: list[Generation], names: list[str], step: int, *, world_size: int = 2) -> tuple[LogSpan, ...]:
    return reach(generations, logged(names), step=step, world_size=world_size).spans


def test_it_reaches_to_the_last_step_that_all_ranks_have() -> None:
    found = reach(ONE, logged([*keys(1, 0, 14), log_key(1, 14, 0)]), step=10, world_size=2)
    assert found.spans == (LogSpan(1, 10, 14),)
    assert found.why_not_further == "step 14: rank 1 did not log it"


def test_it_ends_at_a_gap() -> None:
    assert spans(ONE, keys(1, 10, 12) + keys(1, 13, 20), 10) == (LogSpan(1, 10, 12),)
    assert spans(ONE, keys(1, 11, 20), 10) == ()


def test_nothing_logged_is_nothing_to_say() -> None:
    found = reach(ONE, {}, step=10, world_size=2)
    assert (found.spans, found.why_not_further) == ((), "")


def test_what_a_world_of_another_size_logged_is_not_replayed() -> None:
    found = reach(ONE, logged(keys(1, 10, 20)), step=10, world_size=1)
    assert found.spans == ()
    assert found.why_not_further == "step 10: rank 1, which the world does not have, did"
    assert spans(ONE, keys(1, 10, 20), 10, world_size=3) == ()


def test_it_goes_on_through_a_generation_that_was_itself_replayed() -> None:
    """Killed at 14, replayed to 14, killed again at 17: the checkpoint is still that of step 10."""
    generations = [begin(1), begin(2, 1, 14)]
    assert spans(generations, keys(1, 8, 14) + keys(2, 14, 17), 10) == (LogSpan(1, 10, 14), LogSpan(2, 14, 17))


def test_a_superseded_log_is_never_replayed() -> None:
    """Rolled back from 20 to 10: what generation 1 logged beyond is the past that was given up."""
    generations = [begin(1), begin(2, 1, 10)]
    assert spans(generations, keys(1, 0, 20), 10) == ()
    assert spans(generations, keys(1, 0, 20) + keys(2, 10, 12), 10) == (LogSpan(2, 10, 12),)


def test_what_a_cut_off_worker_logs_late_is_not_replayed() -> None:
    generations = [begin(1), begin(2, 1, 14)]
    assert spans(generations, keys(1, 8, 16), 10) == (LogSpan(1, 10, 14),)


def test_it_ends_where_the_run_is_to_end() -> None:
    assert reach(ONE, logged(keys(1, 0, 20)), step=10, world_size=2, stop=12).spans == (LogSpan(1, 10, 12),)


def test_the_initial_state_is_a_state_like_any_other() -> None:
    assert spans(ONE, keys(1, 0, 5), 0) == (LogSpan(1, 0, 5),)


def test_without_a_generation_there_is_no_log() -> None:
    assert spans([], keys(1, 0, 5), 0) == ()


def test_what_lies_before_the_oldest_checkpoint_in_use_or_off_the_line_may_go() -> None:
    generations = [begin(1), begin(2, 1, 14)]
    names = keys(1, 0, 16, ranks=1) + keys(2, 14, 18, ranks=1)
    assert spare(generations, names, from_step=10) == keys(1, 0, 10, ranks=1) + keys(1, 14, 16, ranks=1)


def test_what_is_not_ours_is_left_alone() -> None:
    assert spare(ONE, ["log/readme", "packs/00/1-2", log_key(2, 3, 0)], from_step=10) == []


@given(st.integers(0, 10**9), st.integers(0, 10**13), st.integers(0, 10**6))
def test_a_key_says_what_it_is_of(generation: int, step: int, rank: int) -> None:
    assert log_place(log_key(generation, step, rank)) == (generation, step, rank)


@given(st.data())
def test_nothing_that_could_be_replayed_is_spare(data: st.DataObject) -> None:
    """Any line of replays and rollbacks: from any checkpoint in use, the log leads on as far as before."""
    generations, step = [begin(1)], 0
    names: list[str] = []
    for number in range(1, data.draw(st.integers(2, 5))):
        start, step = step, step + data.draw(st.integers(0, 6))
        names += keys(number, start, step + 1)  # one more, late
        fork = data.draw(st.integers(start, step))
        generations.append(begin(number + 1, number, fork))
        step = fork
    names += keys(len(generations), step, step + 3)
    oldest = data.draw(st.integers(0, step))
    left = sorted(set(names) - set(spare(generations, names, from_step=oldest)))
    for first in range(oldest, step + 3):
        before, after = (reach(generations, logged(some), step=first, world_size=2).spans for some in (names, left))
        assert before == after
