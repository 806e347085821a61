"""Many objects are asked about at once, and the answers come in the order of the questions."""

from __future__ import annotations

import threading

import pytest

from stormsail.platform.checkpoint.heads import heads
from stormsail.platform.errors import StorageUnavailableError
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo

KEYS = [f"packs/{number}" for number in range(20)]
LIMIT_S = 60.0


class Together(MemoryStore):
    """Answers only when two questions wait at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)

    def head(self, key: str) -> ObjectInfo:
        self._both.wait(LIMIT_S)
        return super().head(key)


class Away(MemoryStore):
    """Fails at one key."""

    def head(self, key: str) -> ObjectInfo:
        if key == KEYS[3]:
            raise StorageUnavailableError("503", where=key)
        return super().head(key)


def fill(store: MemoryStore, keys: list[str]) -> MemoryStore:
    for key in keys:
        store.put(key, key.encode() * int(key.rpartition("/")[2]))
    return store


@pytest.mark.parametrize("count", [0, 5, 20])
def test_answers_come_in_the_order_of_the_keys_and_none_is_what_is_missing(count: int) -> None:
    store, keys = MemoryStore(), KEYS[:count]
    fill(store, keys[::2])
    found = heads(store, keys)
    assert [None if info is None else info.key for info in found] == [
        key if place % 2 == 0 else None for place, key in enumerate(keys)
    ]
    assert all(info is None or info == store.head(info.key) for info in found)


def test_many_are_asked_about_at_once() -> None:
    assert None not in heads(fill(Together(), KEYS), KEYS)


@pytest.mark.parametrize("count", [5, 20])
def test_a_store_that_fails_is_no_missing_object(count: int) -> None:
    with pytest.raises(StorageUnavailableError):
        heads(fill(Away(), KEYS), KEYS[:count])


@pytest.mark.parametrize("count", [5, 20])
def test_whoever_is_asked_first_can_end_it(count: int) -> None:
    def stop() -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        heads(fill(MemoryStore(), KEYS), KEYS[:count], stop)
