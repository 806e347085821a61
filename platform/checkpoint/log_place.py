"""Where the gradient log lies: in the memory of the nodes that wrote it, in the run's store, or in both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from stormsail.platform.checkpoint.keys import COMMITS, LOG, log_place, owner_of
from stormsail.platform.errors import ObjectMissingError, StorageError
from stormsail.platform.storage.store import ObjectInfo, ObjectStore


class LogPlace(Protocol):
    """As much of an object store as the log needs; every `ObjectStore` will do."""

    def put(self, key: str, data: bytes | memoryview, *, if_none_match: bool = False) -> ObjectInfo:
        """See `ObjectStore.put`."""

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""


class Elsewhere(Protocol):
    """The way to other nodes' memories; each call may block up to its own limit, and is made in no healthy step."""

    def log_infos(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """Entries that other nodes hold."""

    def log_entry(self, key: str) -> bytes | None:
        """An entry that another node holds, or None."""


class NodeLog:
    """Writes into this node's memory, and reads from there, from the run's store, or from other nodes.

    Args:
        node: Gives the object store in this node's memory, or None while there is none.
        store: The run's store.
        elsewhere: The way to other nodes, or None if there are no vaults.
    """

    def __init__(
        self, node: Callable[[], ObjectStore | None], store: ObjectStore, elsewhere: Elsewhere | None = None
    ) -> None:
        self._node = node
        self._store = store
        self._elsewhere = elsewhere

    def put(self, key: str, data: bytes | memoryview, *, if_none_match: bool = False) -> ObjectInfo:
        """Keep an entry in this node's memory.

        Raises:
            StorageError: There is no vault on this node, or it is full.
        """
        node = self._node()
        if node is None:
            raise StorageError(
                "this node has no vault to keep the gradient log in", todo="set checkpoint.gradient_log to store"
            )
        return node.put(key, data, if_none_match=if_none_match)

    def get(self, key: str) -> bytes:
        """An entry, from wherever it is nearest.

        Raises:
            StorageError: It is nowhere, or the store failed.
        """
        node = self._node()
        if node is not None:
            with contextlib.suppress(ObjectMissingError):  # it may have been written elsewhere
                return node.get(key)
        try:
            return self._store.get(key)
        except ObjectMissingError:
            found = self._elsewhere.log_entry(key) if self._elsewhere is not None else None
            if found is None:
                raise
            return found

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All entries in order, each once."""
        node = self._node()
        found = {info.key: info for info in self._store.list(prefix, start_after=start_after)}
        if self._elsewhere is not None:
            found |= {info.key: info for info in self._elsewhere.log_infos(prefix, start_after)}
        if node is not None:
            found |= {info.key: info for info in node.list(prefix, start_after=start_after)}
        yield from (found[key] for key in sorted(found))

    def prune(self, generation: int) -> None:
        """Give up what this node holds of steps that are behind the newest checkpoint but one of a generation.

        Raises:
            StorageError: A store failed.
        """
        node = self._node()
        refs = [owner_of(info.key) for info in self._store.list(COMMITS)]
        steps = sorted(ref.step for ref in refs if ref is not None and ref.generation == generation)
        if node is None or len(steps) < 2:  # noqa: PLR2004 - the newest one may turn out to be damaged
            return
        for info in node.list(LOG):
            place = log_place(info.key)
            if place is not None and place[1] < steps[-2]:
                node.delete(info.key)


def place_of_log(
    mode: str, store: ObjectStore, node: Callable[[], ObjectStore | None], elsewhere: Elsewhere | None = None
) -> LogPlace:
    """The place for `checkpoint.gradient_log`.

    Args:
        mode: What it says.
        store: The run's store.
        node: Gives the object store in this node's memory, or None while there is none.
        elsewhere: The way to other nodes.
    """
    return NodeLog(node, store, elsewhere) if mode == "vault" else store
