"""What a node's vault does: hands out slots within its budget, keeps copies for another node, and reads images out.

A plain object without Ray; `supervisor/vaults.py` puts it into an actor that survives the workers. All methods may be
called from any thread. What lies in shared memory outlives this object too: one that is started anew finds it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stormsail.platform.checkpoint.records import seal, unseal
from stormsail.platform.errors import CheckpointError, ClusterError, StorageFullError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault import slots
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.image import ImageRecord, checksum
from stormsail.platform.vault.slots import OpenSlot

CHUNK_BYTES = 16 << 20  # of one message between vaults
_SLOT_SHARE = 0.75  # of the budget; the rest is for objects and records
_COPIES = 2  # of each rank of another node: one is whole while the next one arrives
_HANDED_S = 60.0  # between being told of a slot and taking it
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class VaultState:
    """What a vault says about itself.

    Attributes:
        pid: Of its process.
        born_s: When this process of it began; another one after it was started again.
        images: Whole snapshots.
        used_bytes: What everything takes.
        budget_bytes: What it may take.
        uncopied: Why the newest copy to the buddy failed; empty if it did not.
    """

    pid: int
    born_s: float
    images: int
    used_bytes: int
    budget_bytes: int
    uncopied: str = ""


class VaultKeeper:
    """Keeps one run's vault on one node.

    Args:
        folder: Where.
        budget_bytes: What all of it may take.

    Raises:
        ClusterError: Another process keeps this vault.
        StorageError: There is no shared memory.
    """

    def __init__(self, folder: VaultFolder, budget_bytes: int) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._born_s = time.time()
        self._lock = threading.Lock()
        self._handed: dict[str, float] = {}
        self._receiving: dict[str, int] = {}  # slots that a copy is being written to, locked so that nobody reads them
        self._has_buddy = False
        folder.make(budget_bytes)
        held = folder.hold()
        if held is None:
            raise ClusterError("Another process keeps this vault", where=str(folder.path))
        self._held = held

    @property
    def folder(self) -> VaultFolder:
        """Where it is."""
        return self._folder

    def state(self) -> VaultState:
        """What there is to say about it."""
        images = sum(1 for path in self._all() if _record(path) is not None)
        return VaultState(os.getpid(), self._born_s, images, self._folder.used_bytes(), self._budget_bytes)

    def expect_copies(self, *, expected: bool) -> None:
        """Say whether half of the budget is for another node's snapshots."""
        with self._lock:
            self._has_buddy = expected

    # ------------------------------------------------------------------------ slots

    def slots(self, rank: int, size_bytes: int, wanted: int, ranks_here: int) -> list[str]:
        """Names of slots that a rank of this node may take, those that a dead process of the same rank left first.

        Args:
            rank: Whose.
            size_bytes: Of one snapshot.
            wanted: How many.
            ranks_here: Ranks on this node that share the budget.

        Returns:
            At most `wanted`; none where not even one fits into the rank's share.
        """
        size = -(-max(size_bytes, 1) // _PAGE_BYTES) * _PAGE_BYTES
        with self._lock:
            share = self._budget_bytes * _SLOT_SHARE / ranks_here / (2 if self._has_buddy else 1)
            count = min(wanted, int(share // size))
            mine = [path for path in self._free() if _rank_of(path) == rank and path.stat().st_size == size]
            mine.sort(key=_age, reverse=True)
            for path in mine[count:]:
                slots.remove(path)
            names = [path.name for path in mine[:count]]
            while len(names) < count and self._has_room(size, keep={*names, *(path.name for path in mine)}):
                names.append(self._create(f"{rank:05d}", size).name)
            self._handed.update(dict.fromkeys(names, time.monotonic()))
            return names

    def _create(self, prefix: str, size: int) -> Path:
        taken = {path.name for path in self._all()}
        name = next(name for number in range(100_000) if (name := f"{prefix}{number:05d}") not in taken)
        return slots.create(self._folder, name, size)

    def _has_room(self, size: int, keep: set[str]) -> bool:
        """Make room for a slot by giving up what is oldest among what nobody has; False if that is not enough."""
        while self._folder.free_bytes() < size:
            spare = [path for path in self._free() if path.name not in keep and path.stat().st_size != size]
            spare = spare or [path for path in self._free() if path.name not in keep]
            if not spare or not slots.remove(min(spare, key=_age)):
                return False
        return True

    def _all(self) -> list[Path]:
        return slots.list_slots(self._folder)

    def _free(self) -> list[Path]:
        """Slots that no process has, or is about to take."""
        now = time.monotonic()
        self._handed = {name: at for name, at in self._handed.items() if now - at < _HANDED_S}
        busy = self._handed.keys() | self._receiving.keys()
        return [path for path in self._all() if path.name not in busy and not slots.is_leased(path)]

    # ----------------------------------------------------------------------- reading

    def images(self, ref: CheckpointRef) -> list[tuple[str, bytes]]:
        """Name and record (as it is stored) of each image of a checkpoint."""
        return [
            (path.name, seal(record))
            for path in self._all()
            if (record := _record(path)) is not None and record.ref == ref
        ]

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes of a slot, at most a chunk; the reader checks them.

        Raises:
            CheckpointError: The slot is gone, or being overwritten.
        """
        opened = self._open(name)
        try:
            return opened.bytes[start : min(stop, start + CHUNK_BYTES)].tobytes()
        finally:
            opened.close()

    def discard(self, name: str) -> None:
        """A reader found an image damaged: nobody takes it again."""
        slots.drop_record(self._folder.slots / name)

    def _open(self, name: str) -> OpenSlot:
        try:
            return OpenSlot(self._folder.slots / name)
        except OSError as error:
            raise CheckpointError(f"the snapshot is not there any more: {error}", where=name) from error

    # ------------------------------------------------------- copies for another node

    def send(
        self,
        name: str,
        begin: Callable[[int, int], str],
        write: Callable[[str, int, bytes], None],
        end: Callable[[str, bytes], None],
    ) -> CheckpointRef | None:
        """Copy an image to another vault by its three calls; None if there is no whole image any more.

        Args:
            name: The slot.
            begin: Given (rank, bytes), gives the name of a slot there.
            write: Given (that name, offset, at most a chunk of bytes).
            end: Given (that name, the record as it is stored).
        """
        path = self._folder.slots / name
        record = _record(path)
        if record is None:
            return None
        opened = self._open(name)
        try:
            there = begin(record.rank, record.size_bytes)
            for start in range(0, record.size_bytes, CHUNK_BYTES):
                write(there, start, opened.bytes[start : min(start + CHUNK_BYTES, record.size_bytes)].tobytes())
            end(there, seal(record))
        finally:
            opened.close()
        return record.ref

    def begin_copy(self, node: str, rank: int, size_bytes: int) -> str:
        """Make room for a copy of a rank's image of another node, in place of the oldest one of that rank.

        Nobody can read the slot until the copy has ended, and a slot that is being read is not taken.

        Raises:
            StorageFullError: The budget has no room for it, or every slot for it is being read.
        """
        prefix = f"{int(hashlib.sha256(node.encode()).hexdigest()[:8], 16):010d}{rank:05d}"
        size = -(-max(size_bytes, 1) // _PAGE_BYTES) * _PAGE_BYTES
        with self._lock:
            own = [path for path in self._all() if path.name.startswith(prefix)]
            fitting = [path for path in own if path.stat().st_size == size]
            for path in own:
                if path not in fitting:
                    slots.remove(path)
            if len(fitting) >= _COPIES:
                for path in sorted(fitting, key=_age):
                    if self._claim(path):
                        slots.drop_record(path)
                        return path.name
                raise StorageFullError(f"every copy of rank {rank} is being read", where=str(self._folder.path))
            if not self._has_room(size, keep={path.name for path in fitting}):
                raise StorageFullError(
                    f"no room for a copy of {size} bytes",
                    where=str(self._folder.path),
                    todo="Raise checkpoint.vault_gib.",
                )
            path = self._create(prefix, size)
            if not self._claim(path):
                raise StorageFullError(f"the new slot {path.name} is being read", where=str(self._folder.path))
            return path.name

    def _claim(self, path: Path) -> bool:
        """Keep readers out of a slot; False if it has one. A copy that was begun and never ended is begun anew."""
        if path.name in self._receiving:
            return True
        handle = slots.claim(path)
        if handle is None:
            return False
        self._receiving[path.name] = handle
        return True

    def write_copy(self, name: str, offset: int, data: bytes) -> None:
        """A chunk of a copy has come.

        Raises:
            CheckpointError: No copy was begun there; the vault was started again meanwhile.
        """
        handle = self._receiving.get(name)
        if handle is None:
            raise CheckpointError("no copy was begun in this slot", where=name)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(handle, rest, offset)
            offset, rest = offset + written, rest[written:]

    def end_copy(self, name: str, record: bytes) -> None:
        """All of a copy has come.

        Raises:
            CheckpointError: It is not what was sent; it is not kept.
        """
        with self._lock:
            handle = self._receiving.pop(name, None)
        if handle is None:
            raise CheckpointError("no copy was begun in this slot", where=name)
        try:
            found = unseal(record, ImageRecord, name)
            there = np.frombuffer(mmap.mmap(handle, os.fstat(handle).st_size, access=mmap.ACCESS_READ), dtype=np.uint8)
            for piece in found.pieces:
                if checksum(there[piece.offset : piece.stop_byte]) != piece.checksum:
                    raise CheckpointError("the copy is not what was sent", where=name)
            slots.write_record(self._folder.slots / name, found)
        finally:
            slots.unclaim(handle)

    # --------------------------------------------------------------------------- end

    def end(self) -> None:
        """The run is over: unlink everything."""
        self._folder.remove()
        self.close()

    def close(self) -> None:
        """Keep the vault no longer; what is in it stays."""
        for handle in self._receiving.values():
            slots.unclaim(handle)
        self._receiving = {}
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def _record(path: Path) -> ImageRecord | None:
    """The record of a slot, or None if there is none that can be read; its reader finds out why."""
    try:
        return slots.read_record(path)
    except (CheckpointError, FileNotFoundError):
        return None


def _age(path: Path) -> tuple[int, int]:
    """What may go first sorts first."""
    record = _record(path)
    return (-1, -1) if record is None else (record.generation, record.step)


def _rank_of(path: Path) -> int | None:
    """The rank of this node that the slot was made for; None for a copy."""
    name = path.name
    return int(name[:5]) if len(name) == 10 else None  # noqa: PLR2004 - rank and number, five digits each


def chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut a range into pieces of at most a chunk."""
    while start < stop:
        yield start, min(start + CHUNK_BYTES, stop)
        start += CHUNK_BYTES
