"""The places of one rank that are nearer than the store: its own slots, its node's vault, and other nodes' vaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError, StormsailError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.images import Image, images_in_vault
from stormsail.platform.vault.slots import Slot

_MOST_PRIVATE = 2  # one that is written while the next one is copied

Tell = Callable[..., None]


class VaultLink(Protocol):
    """What a rank asks of vaults; each call may block up to its own limit, and is made in no healthy step."""

    def slots(self, size_bytes: int, wanted: int) -> Sequence[str]:
        """Names of slots on this node that this rank may take; fewer than wanted where the budget is small."""

    def sealed(self, slot: str) -> None:
        """An image is whole; does not wait."""

    def elsewhere(self, ref: CheckpointRef) -> Iterator[Image]:
        """Images of a checkpoint in the vaults of other nodes."""


@dataclass(frozen=True, slots=True)
class Places:
    """Slots for snapshots, and where to look for them.

    Attributes:
        rank: This rank.
        ring: Snapshots to keep.
        folder: The run's vault on this node.
        link: The way to the vaults, or None for a run without them.
        tell: Records an event.
        pin: Makes memory fast to copy to from the device; None where that needs nothing.
    """

    rank: int
    ring: int
    folder: VaultFolder
    link: VaultLink | None
    tell: Tell
    pin: Callable[[Words], None] | None = None

    def acquire(self, size_bytes: int) -> list[Slot]:
        """Slots in the vault, or in this process's memory where it has none for us. Blocks; from a thread."""
        found = self._slots(size_bytes)
        if self.pin is not None:
            try:
                for slot in found:
                    self.pin(slot.words)
            except StormsailError as error:
                self.tell("snapshot.unpinned", rank=self.rank, why=str(error).replace("\n", "; "))
        return found

    def _slots(self, size_bytes: int) -> list[Slot]:
        if self.link is None:
            return self._private(size_bytes)
        try:
            names = self.link.slots(size_bytes, self.ring)
            found = [slot for name in names if (slot := Slot.lease(self.folder.slots / name)) is not None]
        except StormsailError as error:
            self._unused(str(error).replace("\n", "; "))
            return self._private(size_bytes)
        if not found:
            self._unused(f"{size_bytes} bytes do not fit into its share of checkpoint.vault_gib")
            return self._private(size_bytes)
        return found

    def _private(self, size_bytes: int) -> list[Slot]:
        return [Slot.private(size_bytes) for _ in range(min(self.ring, _MOST_PRIVATE))]

    def _unused(self, why: str) -> None:
        self.tell("vault.unused", rank=self.rank, why=why)

    def sealed(self, slot: Slot) -> None:
        """An image is whole: the vault may copy it to another node."""
        if self.link is not None and slot.path is not None:
            self.link.sealed(slot.path.name)

    def images(self, ref: CheckpointRef) -> Iterator[Image]:
        """Those of this node, then those of others; nobody is asked before it is needed."""
        yield from images_in_vault(self.folder, ref, self._damaged_record)
        if self.link is not None:
            yield from self.link.elsewhere(ref)

    def trouble(self, image: Image, error: StormsailError) -> None:
        """An image could not be used."""
        ref = image.record.ref
        self._tell_damage(image.place, image.where, ref, error)

    def _damaged_record(self, place: str, error: CheckpointError) -> None:
        self._tell_damage(place, error.where, None, error)

    def _tell_damage(self, place: str, where: str, ref: CheckpointRef | None, error: StormsailError) -> None:
        self.tell(
            "place.damaged",
            place=place,
            where=where,
            rank=self.rank,
            step=ref.step if ref else 0,
            ref_generation=ref.generation if ref else 0,
            why=str(error).replace("\n", "; "),
        )
