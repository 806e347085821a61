"""Copying a node's gradient log into another node's vault: what the one that sends does, and the one that receives.

A plain object without Ray, as the keeper. An entry travels in messages of a fixed size, and is there once all of it
has come; whoever reads it checks its SHA-256. Methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stormsail.platform.checkpoint.keys import LOG, log_place
from stormsail.platform.checkpoint.log_place import drop_steps
from stormsail.platform.errors import CheckpointError, ObjectMissingError, PreconditionFailedError, StorageFullError
from stormsail.platform.storage.store import MultipartUpload, ObjectInfo
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.keeper import chunks

# Called with (key, size of the whole, offset, bytes); says whether the rest is wanted.
Write = Callable[[str, int, int, bytes], bool]


@dataclass(slots=True)
class _Coming:
    """An entry of which some has come."""

    key: str
    upload: MultipartUpload
    received: int = 0


class LogCopies:
    """One vault's half of the copying.

    Args:
        folder: The vault, which its keeper has made.
    """

    def __init__(self, folder: VaultFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._coming: dict[int, _Coming] = {}  # by rank: the next entry of one takes the place of an unfinished one
        store = folder.copies_store()
        if store is not None:
            store.abort_stale_uploads("", older_than_s=0.0)  # of this vault's process before this one

    # --------------------------------------------------------------------------- sending

    def held(self) -> list[str]:
        """The keys of all that the ranks of this node have logged and that is still there, oldest first."""
        store = self._folder.store()
        return [] if store is None else [info.key for info in store.list(LOG)]

    def send(self, key: str, write: Write) -> bool:
        """Copy an entry to another vault by its `receive`; False if it is not here any more.

        Raises:
            StorageError: Shared memory failed.
        """
        store = self._folder.store()
        if store is None:
            return False
        try:
            size = store.head(key).size_bytes
            for start, stop in chunks(0, size):
                if not write(key, size, start, store.get(key, start=start, end=stop)):
                    return True
        except ObjectMissingError:
            return False  # a save has made it needless meanwhile
        return True

    # ------------------------------------------------------------------------- receiving

    def receive(self, key: str, size_bytes: int, offset: int, data: bytes) -> bool:
        """A part of an entry has come; False if nothing more of it is wanted, because it is here already.

        Raises:
            CheckpointError: This is no key of the log, or not the part that comes next.
            StorageFullError: There is no room for it.
            StorageError: Shared memory failed.
        """
        place = log_place(key)
        if place is None:
            raise CheckpointError("only the gradient log is copied", where=key)
        with self._lock:
            coming = self._begin(key, place[2], size_bytes) if offset == 0 else self._coming.get(place[2])
            if coming is None and offset == 0:
                return False
            if coming is None or coming.key != key or coming.received != offset:
                raise CheckpointError("this is not the part of the entry that comes next", where=key)
            coming.upload.write(data)
            coming.received += len(data)
            if coming.received < size_bytes:
                return True
            del self._coming[place[2]]
            with contextlib.suppress(PreconditionFailedError):  # it came twice
                coming.upload.complete(if_none_match=True)
            return True

    def _begin(self, key: str, rank: int, size_bytes: int) -> _Coming | None:
        unfinished = self._coming.pop(rank, None)
        if unfinished is not None:
            unfinished.upload.abort()
        store = self._folder.copies_store()
        if store is None:
            raise StorageFullError("this vault has no budget", where=key)
        if any(info.key == key for info in store.list(key)):
            return None
        room = self._folder.room_for_copies()
        if size_bytes > room:
            raise StorageFullError(
                f"room for copies of the gradient log: {room} bytes, wanted: {size_bytes}",
                where=str(self._folder.path),
                todo="raise checkpoint.vault_gib, or save more often",
            )
        self._coming[rank] = _Coming(key, store.multipart(key))
        return self._coming[rank]

    def spare(self, step: int) -> None:
        """No copy of an earlier step is needed any more.

        Raises:
            StorageError: Shared memory failed.
        """
        store = self._folder.copies_store()
        if store is not None:
            drop_steps(store, before=step)

    # --------------------------------------------------------------------------- reading

    def infos(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """All of the log that this node holds, its own and another's."""
        for store in self._folder.stores():
            yield from store.list(prefix, start_after=start_after)

    def entry(self, key: str) -> bytes | None:
        """An entry that this node holds, or None."""
        for store in self._folder.stores():
            try:
                return store.get(key)
            except ObjectMissingError:
                continue
        return None
