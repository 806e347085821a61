"""The log in a node's memory: written there, read from there or from the store, and given up when it is old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.platform.checkpoint.test_log_entry import BITS
from tests.platform.checkpoint.test_log_entry import step as logged_step

from stormsail.platform.checkpoint.keys import commit_key, log_key
from stormsail.platform.checkpoint.log_entry import pack_entry
from stormsail.platform.checkpoint.log_place import NodeLog, place_of_log, read_logged
from stormsail.platform.errors import CheckpointError, ObjectMissingError, StorageError
from stormsail.platform.home import Home
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo
from stormsail.platform.vault.folder import VaultFolder


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[VaultFolder]:
    """A real vault's folder, though not in shared memory."""
    made = VaultFolder.of(Home(tmp_path / "home"), "memory://run", "a" * 20, root=tmp_path)
    made.make(1 << 20)
    yield made
    made.remove()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def place(vault: VaultFolder, store: MemoryStore) -> NodeLog:
    return NodeLog(vault.stores, store)


KEY = log_key(1, 7, 0)


def test_an_entry_stays_in_the_node(place: NodeLog, store: MemoryStore) -> None:
    place.put(KEY, b"entry", if_none_match=True)
    assert place.get(KEY) == b"entry"
    assert list(store.list()) == []


def test_what_the_node_does_not_have_comes_from_the_store(place: NodeLog, store: MemoryStore) -> None:
    store.put(KEY, b"older")
    assert place.get(KEY) == b"older"
    with pytest.raises(ObjectMissingError):
        place.get(log_key(1, 8, 0))


def test_both_are_listed_in_order_and_each_once(place: NodeLog, store: MemoryStore) -> None:
    store.put(log_key(1, 6, 0), b"s")
    store.put(KEY, b"s")
    place.put(KEY, b"n")
    place.put(log_key(1, 8, 0), b"n")
    assert [info.key for info in place.list("log/")] == [log_key(1, step, 0) for step in (6, 7, 8)]
    assert [info.key for info in place.list("log/", start_after=KEY)] == [log_key(1, 8, 0)]


class OtherNodes:
    """The memories of other nodes, without the cluster between."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.told: list[str | int] = []

    def logged(self, key: str) -> None:
        self.told.append(key)

    def spared(self, step: int) -> None:
        self.told.append(step)

    def log_infos(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        return self.store.list(prefix, start_after=start_after)

    def log_entry(self, key: str) -> bytes | None:
        try:
            return self.store.get(key)
        except ObjectMissingError:
            return None


def test_what_another_node_holds_is_found_there(vault: VaultFolder, store: MemoryStore) -> None:
    """Ranks may come back on other nodes than those that they wrote on."""
    others = OtherNodes()
    place = NodeLog(vault.stores, store, others)
    others.store.put(log_key(1, 6, 1), b"far")
    place.put(KEY, b"near")
    assert [info.key for info in place.list("log/")] == [log_key(1, 6, 1), KEY]
    assert place.get(log_key(1, 6, 1)) == b"far"
    with pytest.raises(ObjectMissingError):
        place.get(log_key(1, 9, 9))


def test_the_vault_hears_of_what_it_is_to_copy_and_of_what_is_spare(vault: VaultFolder, store: MemoryStore) -> None:
    others = OtherNodes()
    place = NodeLog(vault.stores, store, others)
    place.put(KEY, b"entry")
    for step in (4, 8):
        store.put(commit_key(CheckpointRef(1, step)), b"commit")
    place.prune(1)
    assert others.told == [KEY, 4]


def test_a_bit_that_turned_on_its_way_from_the_store_costs_another_read(store: MemoryStore) -> None:
    class Noisy(MemoryStore):
        def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            data = bytearray(super().get(key, start=start, end=end))
            data[-1] ^= bits.pop()
            return bytes(data)

    noisy, bits = Noisy(), [0, 1]
    noisy.put(KEY, pack_entry(logged_step(), BITS))
    assert read_logged(noisy, KEY)[0] == logged_step()
    bits += [1, 1]
    with pytest.raises(CheckpointError, match=KEY):
        read_logged(noisy, KEY)
    for place in (store, NodeLog(tuple, store)):
        with pytest.raises(ObjectMissingError):
            read_logged(place, KEY)


def test_a_node_without_a_vault_says_so(store: MemoryStore) -> None:
    place = NodeLog(tuple, store)
    with pytest.raises(StorageError, match="no vault"):
        place.put(KEY, b"entry")
    assert list(place.list()) == []


def test_what_lies_behind_the_newest_checkpoint_but_one_is_given_up(place: NodeLog, store: MemoryStore) -> None:
    for step in range(1, 10):
        place.put(log_key(2, step, 0), b"entry")
    place.put(log_key(1, 3, 0), b"entry")
    store.put(commit_key(CheckpointRef(1, 9)), b"of another generation")
    store.put(commit_key(CheckpointRef(2, 4)), b"commit")
    place.prune(2)
    assert len(list(place.list("log/"))) == 10
    store.put(commit_key(CheckpointRef(2, 8)), b"commit")
    place.prune(2)
    assert [info.key for info in place.list("log/")] == [log_key(2, step, 0) for step in range(4, 10)]


def test_only_vault_means_the_node(store: MemoryStore) -> None:
    assert place_of_log("store", store, tuple) is store
    assert isinstance(place_of_log("vault", store, tuple), NodeLog)
