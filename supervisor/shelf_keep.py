"""Keeping a run's checkpoints by hand: pinned against retention, or written once more without their keyframe."""

from __future__ import annotations

import getpass
import socket
import time

from stormsail.platform.checkpoint.commits import load_commit
from stormsail.platform.checkpoint.pins import pin, unpin
from stormsail.platform.errors import CheckpointError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.compacting import fold_held
from stormsail.supervisor.record import fold


def pin_checkpoint(store: ObjectStore, ref: CheckpointRef) -> bool:
    """Keep a checkpoint whatever retention would do. Returns False if it was pinned already.

    Raises:
        CheckpointError: There is no such checkpoint, or retention is deleting it just now.
        StorageError: The store failed.
    """
    new = pin(store, ref, owner=f"{getpass.getuser()}@{socket.gethostname()}", time_s=time.time())
    try:
        _check_stays(store, ref)
    except CheckpointError:
        unpin(store, ref)
        raise
    return new


def _check_stays(store: ObjectStore, ref: CheckpointRef) -> None:
    """After the pin, not before it: retention notes what it deletes, and then looks at the pins once more."""
    if ref in fold(Journal.read(store)).deleted:
        raise CheckpointError(
            "retention is deleting this checkpoint",
            where=f"generation {ref.generation}, step {ref.step}",
            todo="pin another one; `stormsail checkpoints ls` shows those that there are",
        )
    load_commit(store, ref)


def compact_checkpoint(store: ObjectStore, ref: CheckpointRef) -> int | None:
    """Write a checkpoint once more as a keyframe, for the same step and root.

    Returns:
        Bytes of it; None for a checkpoint that is a keyframe already.

    Raises:
        CheckpointError: There is no such checkpoint, or it is damaged.
        StorageError: The store failed.
    """
    manifest = fold_held(store, ref)
    return None if manifest is None else manifest.stored_bytes
