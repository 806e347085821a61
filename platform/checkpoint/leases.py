"""Leases of readers: what somebody reads is not deleted under it, for a while.

A reader that dies leaves a lease that runs out by itself. A store that may not be written to holds no leases, and
nobody deletes from it either.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from pydantic import ConfigDict

from stormsail.platform.checkpoint.keys import LEASES, lease_key
from stormsail.platform.checkpoint.records import RECORD_CONFIG, seal, unseal
from stormsail.platform.errors import CheckpointError, ObjectMissingError, StorageDeniedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore

LEASE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Lease:
    """What one reader needs.

    Attributes:
        refs: Checkpoints that it reads, with what they build on.
        owner: Who it is, for people.
        until_s: When it runs out, in seconds since the epoch by the reader's clock.
    """

    __pydantic_config__: ClassVar[ConfigDict] = RECORD_CONFIG

    refs: tuple[CheckpointRef, ...]
    owner: str
    until_s: float


class ReadLease:
    """Holds checkpoints while a `with` block reads them; `renew` must be called more often than every half hour.

    Args:
        store: The run's store.
        refs: What is read.
        clock: Seconds since the epoch.
    """

    def __init__(
        self, store: ObjectStore, refs: Iterable[CheckpointRef], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._refs = tuple(sorted(set(refs), key=lambda ref: (ref.generation, ref.step)))
        self._clock = clock
        self._key = lease_key(secrets.token_hex(16))
        self._until_s: float | None = 0.0

    def __enter__(self) -> Self:
        self.renew()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._until_s is not None:
            self._store.delete(self._key)

    def renew(self) -> None:
        """Hold on for another hour, if half of the last one is over.

        Raises:
            StorageError: The store failed.
        """
        now_s = self._clock()
        if self._until_s is None or self._until_s > now_s + LEASE_S / 2:
            return
        try:
            self._store.put(self._key, seal(Lease(self._refs, socket.gethostname(), now_s + LEASE_S)))
        except StorageDeniedError:
            self._until_s = None
            return
        self._until_s = now_s + LEASE_S


def leased(store: ObjectStore, *, now_s: float) -> frozenset[CheckpointRef]:
    """What readers need now. Leases that ran out an hour ago are removed on the way.

    Raises:
        StorageError: The store failed; never reported as "none".
    """
    found: set[CheckpointRef] = set()
    for info in store.list(LEASES):
        try:
            lease = unseal(store.get(info.key), Lease, info.key)
        except ObjectMissingError:
            continue
        except CheckpointError:
            if info.modified_s < now_s - 2 * LEASE_S:
                store.delete(info.key)  # no reader will come back to it
            continue
        if lease.until_s < now_s - LEASE_S:
            store.delete(info.key)
        elif lease.until_s >= now_s:
            found.update(lease.refs)
    return frozenset(found)
