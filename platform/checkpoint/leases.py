"""Leases of readers: what somebody reads is not deleted under it, for a while.

A reader that dies leaves a lease that runs out by itself. A store that may not be written to holds no leases, and
nobody deletes from it either.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from pydantic import ConfigDict

from stormsail.platform.checkpoint.keys import LEASES, lease_key
from stormsail.platform.checkpoint.manifest import Natural
from stormsail.platform.checkpoint.records import RECORD_CONFIG, seal, unseal
from stormsail.platform.errors import CheckpointError, ObjectMissingError, StorageDeniedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore

LEASE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Lease:
    """What one reader needs.

    Attributes:
        refs: Checkpoints that it reads; what they build on stays as long as they do.
        owner: Who it is, for people.
        until_s: When it runs out, in seconds since the epoch by the reader's clock; for people.
        renewal: Counts up, so that each renewal shows, whatever the reader's clock says.
    """

    __pydantic_config__: ClassVar[ConfigDict] = RECORD_CONFIG

    refs: tuple[CheckpointRef, ...]
    owner: str
    until_s: float
    renewal: Natural


class ReadLease:
    """Holds checkpoints while a `with` block reads them; `renew` must be called more often than every half hour.

    Args:
        store: The run's store.
        refs: What is read.
        clock: Monotonic seconds.
        wall_clock: Seconds since the epoch.
    """

    def __init__(
        self,
        store: ObjectStore,
        refs: Iterable[CheckpointRef],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._refs = tuple(sorted(set(refs), key=lambda ref: (ref.generation, ref.step)))
        self._clock = clock
        self._wall_clock = wall_clock
        self._key = lease_key(secrets.token_hex(16))
        self._renew_s = -math.inf
        self._renewal = 0
        self._is_read_only = False

    def __enter__(self) -> Self:
        self.renew()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_read_only:
            self._store.delete(self._key)

    def renew(self) -> None:
        """Hold on for another hour, if half of the last one is over.

        Raises:
            StorageError: The store failed.
        """
        now_s = self._clock()
        if self._is_read_only or now_s < self._renew_s:
            return
        try:
            lease = Lease(self._refs, socket.gethostname(), self._wall_clock() + LEASE_S, self._renewal)
            self._store.put(self._key, seal(lease))
        except StorageDeniedError:
            self._is_read_only = True
            return
        self._renew_s = now_s + LEASE_S / 2
        self._renewal += 1


class LeaseWatch:
    """Which checkpoints readers hold, as one process sees it over its life.

    A lease holds for an hour from when this process first saw its newest renewal, by this process's own steady clock.
    Clocks of the wall jump, and differ between machines; nothing is deleted under a reader because one of them did.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}

    def held(self, store: ObjectStore) -> frozenset[CheckpointRef]:
        """What readers need now. Leases that ran out an hour ago are removed on the way.

        Raises:
            StorageError: The store failed; never reported as "none".
        """
        now_s, seen = self._clock(), {}
        found: set[CheckpointRef] = set()
        for info in store.list(LEASES):
            etag, since_s = self._seen.get(info.key, ("", now_s))
            since_s = since_s if etag == info.etag else now_s
            seen[info.key] = info.etag, since_s
            if now_s - since_s > 2 * LEASE_S:
                store.delete(info.key)  # no reader will come back to it
            elif now_s - since_s <= LEASE_S:
                with contextlib.suppress(ObjectMissingError, CheckpointError):  # given back just now, or damaged
                    found.update(unseal(store.get(info.key), Lease, info.key).refs)
        self._seen = seen
        return frozenset(found)
