"""The gradient log of a node that is lost is read from its buddy's vault, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.platform.checkpoint.test_log_entry import BITS
from tests.platform.checkpoint.test_log_entry import step as logged_step

from stormsail.platform.checkpoint.keys import commit_key, log_key
from stormsail.platform.checkpoint.lines import Generation
from stormsail.platform.checkpoint.log_entry import pack_entry, unpack_entry
from stormsail.platform.checkpoint.log_line import logged, reach
from stormsail.platform.checkpoint.log_place import NodeLog, read_logged
from stormsail.platform.errors import CheckpointError, StorageFullError
from stormsail.platform.messages import CheckpointRef, LogSpan
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo
from stormsail.platform.vault import keeper as keeping
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.keeper import VaultKeeper
from stormsail.platform.vault.log_copies import LogCopies

BUDGET = 1 << 20
STEPS = range(10, 14)


class Node:
    """A node's vault, in a folder that stands in for its shared memory, and the log of a rank on it.

    What the actors do between nodes is a call here, made at once.
    """

    def __init__(self, root: Path, store: MemoryStore) -> None:
        self.keeper = VaultKeeper(VaultFolder(root / "home" / "run-node"), BUDGET)
        self.copies = LogCopies(self.keeper.folder)
        self.others: list[Node] = []
        self.buddy: Node | None = None
        self.log = NodeLog(self.keeper.folder.stores, store, self)

    def logged(self, key: str) -> None:
        if self.buddy is not None:
            self.copies.send(key, self.buddy.copies.receive)

    def spared(self, step: int) -> None:
        if self.buddy is not None:
            self.buddy.copies.spare(step)

    def log_infos(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        for other in self.others:
            yield from other.copies.infos(prefix, start_after)

    def log_entry(self, key: str) -> bytes | None:
        return next((found for other in self.others if (found := other.copies.entry(key)) is not None), None)

    def lose(self) -> None:
        self.keeper.end()
        for other in self.others:
            other.others.remove(self)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def nodes(
    store: MemoryStore, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Node]]:
    """Three in a ring, as the supervisor orders them; messages are so short that every entry needs several."""
    monkeypatch.setattr(keeping, "CHUNK_BYTES", 100)
    made = [Node(tmp_path_factory.mktemp("shm"), store) for _ in range(3)]
    for index, node in enumerate(made):
        node.buddy = made[(index + 1) % 3]
        node.others = [other for other in made if other is not node]
    yield made
    for node in made:
        node.keeper.close()


def write(node: Node, rank: int, steps: range = STEPS) -> None:
    for step in steps:
        entry = logged_step(generation=1, step=step, rank=rank)
        node.log.put(log_key(1, step, rank), pack_entry(entry, BITS), if_none_match=True)


def test_after_the_loss_of_a_node_its_ranks_go_on_from_the_buddy(nodes: list[Node], store: MemoryStore) -> None:
    first, second, third = nodes
    write(first, 0)
    write(second, 1)
    first.lose()
    for survivor in (second, third):  # the rank comes back on either
        found = logged([info.key for info in survivor.log.list("log/")])
        leads = reach([Generation(1, None, 0, "test", "a", 1.0)], found, step=10, world_size=2, stop=None)
        assert leads.spans == (LogSpan(1, 10, 14),)
        for rank in (0, 1):
            for step in STEPS:
                key = log_key(1, step, rank)
                entry, bits = unpack_entry(survivor.log.get(key), key)  # checks the SHA-256 of all of it
                assert (entry.step, entry.rank) == (step, rank)
                assert np.array_equal(bits, BITS)
    assert list(store.list()) == []


def test_a_damaged_entry_is_read_from_the_buddy(nodes: list[Node]) -> None:
    first, second, _ = nodes
    write(first, 0)
    key = log_key(1, 10, 0)
    flip(first.keeper.folder.objects / key)
    assert np.array_equal(read_logged(first.log, key)[1], BITS)
    flip(second.keeper.folder.copies / key)
    with pytest.raises(CheckpointError, match=key):
        read_logged(first.log, key)


def flip(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[-1] ^= 1
    path.write_bytes(held)


def test_a_damaged_copy_is_found_out(nodes: list[Node]) -> None:
    first, second, _ = nodes
    write(first, 0)
    first.lose()
    key = log_key(1, 10, 0)
    flip(second.keeper.folder.copies / key)
    with pytest.raises(CheckpointError, match=key):
        read_logged(second.log, key)


def test_copies_go_with_what_they_are_copies_of(nodes: list[Node], store: MemoryStore) -> None:
    first, second, _ = nodes
    write(first, 0, range(1, 10))
    for step in (4, 8):
        store.put(commit_key(CheckpointRef(1, step)), b"commit")
    first.log.prune(1)
    kept = [log_key(1, step, 0) for step in range(4, 10)]
    assert first.copies.held() == [info.key for info in second.copies.infos("log/", None)] == kept
    assert first.copies.send(log_key(1, 1, 0), pytest.fail) is False  # type: ignore[arg-type]


def test_copies_never_take_the_room_of_the_node_s_own_log(nodes: list[Node]) -> None:
    first, second, _ = nodes
    key, size = log_key(1, 1, 0), BUDGET // 16
    assert second.copies.receive(key, size, 0, bytes(size))
    assert second.keeper.folder.room_for_copies() < size
    with pytest.raises(StorageFullError, match="vault_gib"):
        second.copies.receive(log_key(1, 2, 0), size, 0, bytes(100))
    first.buddy = None
    second.log.put(log_key(1, 1, 1), bytes(size))
    assert second.copies.entry(key) == bytes(size)


def test_what_is_there_is_not_sent_again_and_an_unfinished_copy_is_no_copy(nodes: list[Node]) -> None:
    first, second, _ = nodes
    write(first, 0)
    sent: list[int] = []

    def count(key: str, size: int, offset: int, data: bytes) -> bool:
        sent.append(offset)
        return second.copies.receive(key, size, offset, data)

    for key in first.copies.held():  # as to a buddy of which nothing is known
        assert first.copies.send(key, count)
    assert sent == [0] * len(STEPS)
    cut = log_key(1, 20, 0)
    assert second.copies.receive(cut, 300, 0, bytes(100))
    with pytest.raises(CheckpointError, match="comes next"):
        second.copies.receive(cut, 300, 200, bytes(100))
    with pytest.raises(CheckpointError, match="comes next"):
        second.copies.receive(log_key(1, 21, 0), 300, 100, bytes(100))
    assert second.copies.entry(cut) is None
    used = second.keeper.folder.used_bytes()
    LogCopies(second.keeper.folder)  # the vault's process was started again
    assert second.keeper.folder.used_bytes() < used
    with pytest.raises(CheckpointError, match="only the gradient log"):
        second.copies.receive("commits/1", 1, 0, b"x")
