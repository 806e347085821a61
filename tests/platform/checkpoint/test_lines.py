"""The live line is told from the generations, and what is off it never comes back by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.keys import generation_key
from stormsail.platform.checkpoint.lines import (
    Generation,
    Segment,
    claimed_numbers,
    create_generation,
    list_generations,
    live_line,
    live_refs,
    newest_first,
)
from stormsail.platform.errors import CheckpointError, FencedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit


def begin(number: int, parent: int | None = None, fork_step: int = 0, owner: str = "a") -> Generation:
    return Generation(number, parent, fork_step, "test", owner, 1.0)


def refs(*pairs: tuple[int, int]) -> list[CheckpointRef]:
    return [CheckpointRef(generation, step) for generation, step in pairs]


class FlipsOnce(MemoryStore):
    """Turns a bit of the first answer on its way."""

    flipped = False

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        data = super().get(key, start=start, end=end)
        if self.flipped:
            return data
        self.flipped = True
        return data[:-1] + bytes([data[-1] ^ 1])


def test_a_bit_that_turned_on_its_way_hides_no_generation() -> None:
    store = FlipsOnce()
    create_generation(store, begin(1))
    assert list_generations(store) == [begin(1)]
    assert store.flipped


def test_a_single_generation_is_all_live() -> None:
    assert live_line([begin(1)]) == (Segment(1, None),)
    assert live_refs([begin(1)], refs((1, 10), (1, 5000))) == set(refs((1, 10), (1, 5000)))


def test_no_generation_means_nothing_is_live() -> None:
    assert live_line([]) == ()
    assert not live_refs([], [])
    with pytest.raises(CheckpointError, match="no record of how it began"):
        live_refs([], refs((1, 10)))


def test_a_rollback_supersedes_what_lies_beyond_the_fork() -> None:
    """To 500, back to 400, on to 420 with a new checkpoint: 420 is the newest, not 500."""
    generations = [begin(1), begin(2, 1, 400)]
    commits = refs((1, 300), (1, 400), (1, 410), (1, 500), (2, 420))
    live = live_refs(generations, commits)
    assert live == set(refs((1, 300), (1, 400), (2, 420)))
    assert newest_first(live)[0] == CheckpointRef(2, 420)


def test_what_a_cut_off_worker_commits_late_is_off_the_line() -> None:
    generations = [begin(1), begin(2, 1, 400)]
    assert live_refs(generations, refs((1, 5000), (2, 5000))) == set(refs((2, 5000)))


def test_the_line_skips_generations_that_came_to_nothing() -> None:
    generations = [begin(1), begin(2, 1, 400), begin(3, 1, 300)]
    assert live_line(generations) == (Segment(3, None), Segment(1, 300))


def test_a_fork_before_an_older_fork_limits_all_that_came_before() -> None:
    generations = [begin(1), begin(2, 1, 400), begin(3, 2, 350)]
    assert live_line(generations) == (Segment(3, None), Segment(2, 350), Segment(1, 350))


def test_going_back_to_the_initial_state_begins_a_new_line() -> None:
    generations = [begin(1), begin(2)]
    assert live_refs(generations, refs((1, 10), (2, 10))) == set(refs((2, 10)))


def test_of_one_step_the_younger_generation_comes_first() -> None:
    assert newest_first(refs((1, 10), (2, 10), (1, 20))) == refs((1, 20), (2, 10), (1, 10))


@pytest.mark.parametrize("broken", [[begin(2, 1, 10)], [begin(1), begin(3, 2, 10)], [begin(2, 2, 10)]])
def test_a_broken_chain_is_an_error(broken: list[Generation]) -> None:
    with pytest.raises(CheckpointError, match="not there before it"):
        live_line(broken)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), max_size=8))
def test_steps_on_the_line_never_fall(forks: list[tuple[int, int]]) -> None:
    generations = [begin(1)]
    generations += [begin(number, 1 + back % (number - 1), at) for number, (back, at) in enumerate(forks, start=2)]
    line = live_line(generations)
    limits = [segment.through_step for segment in line[1:]]
    assert line[0] == Segment(len(generations), None)
    assert all(limit is not None for limit in limits)
    assert limits == sorted(limits, key=lambda limit: -(limit or 0))


def test_a_number_is_claimed_once(kit: Kit) -> None:
    store = kit.store()
    create_generation(store, begin(1))
    create_generation(store, begin(1))
    with pytest.raises(FencedError, match="another supervisor"):
        create_generation(store, begin(1, owner="b"))
    assert list_generations(store) == [begin(1)]


def test_generations_are_listed_by_number() -> None:
    store = MemoryStore()
    for number in (3, 1, 100_000_000, 2):
        create_generation(store, begin(number))
    assert [generation.number for generation in list_generations(store)] == [1, 2, 3, 100_000_000]


def test_a_damaged_or_moved_generation_is_an_error() -> None:
    store = MemoryStore()
    create_generation(store, begin(1))
    store.put(generation_key(2), store.get(generation_key(1)))
    with pytest.raises(CheckpointError, match="says that it is generation 1"):
        list_generations(store)
    store.put(generation_key(2), store.get(generation_key(1))[1:])
    with pytest.raises(CheckpointError, match="damaged"):
        list_generations(store)


def test_a_line_is_not_told_by_who_does_not_know_the_youngest_generation() -> None:
    """Else checkpoints beyond a fork would come back to life where the record of the fork is lost."""
    commits = [CheckpointRef(1, 10), CheckpointRef(1, 20), CheckpointRef(2, 20)]
    with pytest.raises(CheckpointError, match="checkpoints of generation 2, but no record") as caught:
        live_refs([begin(1)], commits)
    assert caught.value.objects == (generation_key(2),)
    assert live_refs([begin(1), begin(2, 1, 10)], commits) == {commits[0], commits[2]}


def test_a_number_is_taken_even_if_its_record_cannot_be_read() -> None:
    store = MemoryStore()
    create_generation(store, begin(1))
    store.put(generation_key(7), b"damaged")
    assert claimed_numbers(store) == [1, 7]
