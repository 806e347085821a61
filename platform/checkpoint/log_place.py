"""Where the gradient log lies: in the memory of the nodes that wrote it, in the run's store, or in both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from stormsail.platform.checkpoint.gradient_frame import Bits
from stormsail.platform.checkpoint.keys import COMMITS, LOG, log_place, owner_of
from stormsail.platform.checkpoint.log_entry import LoggedStep, unpack_entry
from stormsail.platform.errors import CheckpointError, InternalError, ObjectMissingError, StorageError
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
    """The way to the vaults; calls that read may block up to their own limit, and are made in no healthy step."""

    def logged(self, key: str) -> None:
        """An entry is whole in this node's memory, and may be copied to another node; does not wait."""

    def spared(self, step: int) -> None:
        """No entry of an earlier step is needed any more; does not wait."""

    def log_infos(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """Entries that other nodes hold."""

    def log_entry(self, key: str) -> bytes | None:
        """An entry that another node holds, or None."""


class NodeLog:
    """Writes into this node's memory, and reads from there, from the run's store, or from other nodes.

    Args:
        node: Gives the object stores in this node's memory, its own first; none while there is no vault.
        store: The run's store.
        elsewhere: The way to other nodes, or None if there are no vaults.
    """

    def __init__(
        self, node: Callable[[], Sequence[ObjectStore]], store: ObjectStore, elsewhere: Elsewhere | None = None
    ) -> None:
        self._node = node
        self._store = store
        self._elsewhere = elsewhere

    def put(self, key: str, data: bytes | memoryview, *, if_none_match: bool = False) -> ObjectInfo:
        """Keep an entry in this node's memory, and have it copied to another node's.

        Raises:
            StorageError: There is no vault on this node, or it is full.
        """
        here = self._node()
        if not here:
            raise StorageError(
                "this node has no vault to keep the gradient log in", todo="set checkpoint.gradient_log to store"
            )
        info = here[0].put(key, data, if_none_match=if_none_match)
        if self._elsewhere is not None:
            self._elsewhere.logged(key)
        return info

    def get(self, key: str) -> bytes:
        """An entry, from wherever it is nearest.

        Raises:
            StorageError: It is nowhere, or the store failed.
        """
        return next(self.copies(key))

    def copies(self, key: str) -> Iterator[bytes]:
        """An entry from each place that has it, the nearest first; no place is asked before it is needed.

        Raises:
            StorageError: It is nowhere, or the store failed.
        """
        for near in self._node():
            with contextlib.suppress(ObjectMissingError):  # it may have been written elsewhere
                yield near.get(key)
        found = self._elsewhere.log_entry(key) if self._elsewhere is not None else None
        if found is not None:
            yield found
        yield self._store.get(key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All entries in order, each once."""
        found = {info.key: info for info in self._store.list(prefix, start_after=start_after)}
        if self._elsewhere is not None:
            found |= {info.key: info for info in self._elsewhere.log_infos(prefix, start_after)}
        for near in self._node():
            found |= {info.key: info for info in near.list(prefix, start_after=start_after)}
        yield from (found[key] for key in sorted(found))

    def prune(self, generation: int) -> None:
        """Give up what is held of steps that are behind the newest checkpoint but one of a generation.

        On this node, and on the one that has its copies.

        Raises:
            StorageError: A store failed.
        """
        refs = [owner_of(info.key) for info in self._store.list(COMMITS)]
        steps = sorted(ref.step for ref in refs if ref is not None and ref.generation == generation)
        if len(steps) < 2:  # noqa: PLR2004 - the newest one may turn out to be damaged
            return
        for near in self._node():
            drop_steps(near, before=steps[-2])
        if self._elsewhere is not None:
            self._elsewhere.spared(steps[-2])


def drop_steps(held: ObjectStore, *, before: int) -> None:
    """Delete the entries of all steps before one, of whatever rank and generation.

    Raises:
        StorageError: The store failed.
    """
    for info in held.list(LOG):
        place = log_place(info.key)
        if place is not None and place[1] < before:
            held.delete(info.key)


def read_logged(source: LogPlace, key: str) -> tuple[LoggedStep, Bits]:
    """An entry from the nearest place that has it whole.

    Raises:
        CheckpointError: It is damaged wherever it is.
        StorageError: It is nowhere, or the store failed.
    """
    damage: CheckpointError | None = None
    copies = source.copies(key) if isinstance(source, NodeLog) else (source.get(key) for _ in range(2))
    try:
        for data in copies:
            try:
                return unpack_entry(data, key)
            except CheckpointError as error:  # a bit can turn on its way too: another copy, or once more
                damage = damage or error
    except ObjectMissingError as error:
        raise damage or error from error
    raise damage or InternalError(f"{key} was looked for nowhere")


def place_of_log(
    mode: str, store: ObjectStore, node: Callable[[], Sequence[ObjectStore]], elsewhere: Elsewhere | None = None
) -> LogPlace:
    """The place for `checkpoint.gradient_log`.

    Args:
        mode: What it says.
        store: The run's store.
        node: Gives the object stores in this node's memory, as for `NodeLog`.
        elsewhere: The way to other nodes.
    """
    return NodeLog(node, store, elsewhere) if mode == "vault" else store
