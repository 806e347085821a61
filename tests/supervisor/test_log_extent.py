"""The supervisor looks how far the log leads, and only at what can lead on from where it asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import log_steps

from stormsail.platform.checkpoint.keys import log_prefix
from stormsail.platform.checkpoint.lines import Generation
from stormsail.platform.errors import StorageError
from stormsail.platform.messages import LogSpan
from stormsail.platform.storage.store import ObjectInfo
from stormsail.supervisor.log_extent import find_reach


class Watched(FragileStore):
    """Remembers what was listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[tuple[str, str | None]] = []

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.listed.append((prefix, start_after))
        return super().list(prefix, start_after=start_after)


def begin(number: int, parent: int | None = None, fork_step: int = 0) -> Generation:
    return Generation(number, parent, fork_step, "test", "a", 1.0)


LINE = [begin(1), begin(2, 1, 8), begin(3, 2, 14)]


def test_it_follows_the_line_over_its_generations() -> None:
    store = Watched()
    log_steps(store, 2, 8, 15)
    log_steps(store, 3, 14, 17)
    found = find_reach(store, LINE, step=10, world_size=2, stop=None)
    assert found.spans == (LogSpan(2, 10, 14), LogSpan(3, 14, 17))


def test_generations_that_ended_before_are_not_listed_nor_steps_before() -> None:
    store = Watched()
    find_reach(store, LINE, step=10, world_size=2, stop=None)
    assert store.listed == [(log_prefix(number), f"{log_prefix(number)}000000000010") for number in (3, 2)]


def test_a_step_to_end_at_is_respected() -> None:
    store = Watched()
    log_steps(store, 3, 14, 17)
    assert find_reach(store, LINE, step=14, world_size=2, stop=15).spans == (LogSpan(3, 14, 15),)


def test_a_store_that_is_away_is_no_empty_log() -> None:
    store = Watched()
    store.go_down()
    with pytest.raises(StorageError):
        find_reach(store, LINE, step=10, world_size=2, stop=None)
