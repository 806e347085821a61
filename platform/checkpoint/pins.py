"""Pins: checkpoints that somebody wants kept, whatever retention would do; small objects beside the run's others.

A pin holds without any process: the run may be live, or over. Retention reads the pins once more after it has noted
what it deletes, and a pinner reads that note after it has pinned: of two that meet, at least one sees the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from stormsail.platform.checkpoint.keys import PINS, owner_of, pin_key
from stormsail.platform.checkpoint.manifest import Natural
from stormsail.platform.checkpoint.records import RECORD_CONFIG, seal
from stormsail.platform.errors import PreconditionFailedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin.

    Attributes:
        generation: Of the checkpoint.
        step: Of the checkpoint.
        owner: Who pinned it, for people.
        time_s: Seconds since the epoch.
    """

    __pydantic_config__: ClassVar[ConfigDict] = RECORD_CONFIG

    generation: Natural
    step: Natural
    owner: str
    time_s: float


def pin(store: ObjectStore, ref: CheckpointRef, *, owner: str, time_s: float) -> bool:
    """Keep a checkpoint. Returns False if it was pinned already.

    Raises:
        StorageError: The store failed.
    """
    try:
        store.put(pin_key(ref), seal(Pin(ref.generation, ref.step, owner, time_s)), if_none_match=True)
    except PreconditionFailedError:
        return False
    return True


def unpin(store: ObjectStore, ref: CheckpointRef) -> bool:
    """Give a checkpoint back to retention. Returns False if it was not pinned.

    Raises:
        StorageError: The store failed.
    """
    pinned = ref in pins(store)
    store.delete(pin_key(ref))
    return pinned


def pins(store: ObjectStore) -> frozenset[CheckpointRef]:
    """All pinned checkpoints. What a pin says is in its key: one whose body is damaged still holds.

    Raises:
        StorageError: The store failed; never reported as "none".
    """
    return frozenset(ref for info in store.list(PINS) if (ref := owner_of(info.key)) is not None)
