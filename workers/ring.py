"""This rank's slots: which one the next snapshot goes into, and which snapshots are still there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault.images import Image, images_in_slots
from stormsail.platform.vault.slots import Slot


class Ring:
    """Hands out slots, the oldest snapshot's first; any thread.

    Args:
        slots: All of one size.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self._busy: set[int] = set()
        self._closed = False
        self._lock = threading.Lock()

    def take(self) -> Slot | None:
        """A slot to copy into, or None while all are being written, or read by somebody else.

        What was in it is given up; never the newest snapshot of a vault, so that saves which pile up while a store is
        away leave it where it is. Give it back with `give_back`.
        """
        with self._lock:
            busy = self._busy | self._newest()
            free = [index for index in range(len(self.slots)) if index not in busy]
            for index in sorted(free, key=self._age):
                if self.slots[index].begin():
                    self._busy.add(index)
                    return self.slots[index]
        return None

    def give_back(self, slot: Slot) -> None:
        """The slot is not being written any more, whether its image is whole or not."""
        slot.release()
        with self._lock:
            self._busy.discard(self.slots.index(slot))
            if self._closed:
                slot.close()

    def images(self, ref: CheckpointRef) -> Iterator[Image]:
        """The whole snapshots of a checkpoint."""
        return images_in_slots(self.slots, ref)

    def close(self) -> None:
        """Give all slots up, those that are being written once they are; what lies in the vault stays there."""
        with self._lock:
            self._closed = True
            for index, slot in enumerate(self.slots):
                if index not in self._busy:
                    slot.close()

    def _newest(self) -> set[int]:
        """The slot of the newest whole snapshot, if it outlives this process and there is another slot to write to."""
        kept = [index for index, slot in enumerate(self.slots) if slot.path is not None and slot.record is not None]
        return {max(kept, key=self._age)} if kept and len(self.slots) > 1 else set()

    def _age(self, index: int) -> tuple[int, int]:
        """What may go first sorts first: no image at all, then the oldest generation and step."""
        record = self.slots[index].record
        return (-1, -1) if record is None else (record.generation, record.step)
