"""Images of a checkpoint, open for reading: in this process's slots, in the node's vault, or fetched from another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.image import WORD_BYTES, Elements, ImagePiece, ImageRecord, checksum
from stormsail.platform.vault.places import MEMORY, VAULT
from stormsail.platform.vault.slots import Bytes, OpenSlot, Slot, drop_record, open_slots, read_record

_GAP_BYTES = 4096

# Called with (start, stop) and the bytes that are to be filled.
Fetch = Callable[[int, int, Bytes], None]


class Image:
    """One rank's snapshot of one checkpoint. Nothing in it is believed before `check`.

    Args:
        place: Where it lies, one of `PLACES`.
        where: The same more precisely, for people.
        record: What it says that it is.
        data: The slot's bytes.
        discard: Makes sure that nobody takes this image again.
        close: Lets go of it.
        fetch: Brings bytes of it here first, or None where they are here.
    """

    def __init__(
        self,
        place: str,
        where: str,
        record: ImageRecord,
        data: Bytes,
        *,
        discard: Callable[[], None],
        close: Callable[[], None] = lambda: None,
        fetch: Fetch | None = None,
    ) -> None:
        self.place = place
        self.where = where
        self.record = record
        self.discard = discard
        self.close = close
        self._data = data
        self._fetch = fetch
        self._pieces = {record.elements(piece): piece for piece in record.pieces}

    def find(self, elements: Elements) -> ImagePiece | None:
        """The piece that holds exactly these elements."""
        return self._pieces.get(elements)

    def load(self, pieces: Sequence[ImagePiece]) -> None:
        """Bring pieces here, neighbours at once.

        Raises:
            StormsailError: Whoever has them did not give them.
        """
        if self._fetch is None:
            return
        for start, stop in _joined(pieces):
            self._fetch(start, stop, self._data[start:stop])

    def check(self, piece: ImagePiece) -> None:
        """Check the bytes of a piece that has been loaded.

        Raises:
            CheckpointError: They are not those that were written.
        """
        if piece.stop_byte > self._data.size:
            raise CheckpointError("the slot is too short for its image", where=self.where)
        found = checksum(self._data[piece.offset : piece.stop_byte])
        if found != piece.checksum:
            name, component, start, count = self.record.elements(piece)
            raise CheckpointError(
                f"damaged: {name}/{component} elements {start} to {start + count} have the checksum {found}, "
                f"expected {piece.checksum}",
                where=self.where,
            )

    def words(self, offset: int, count: int) -> Words:
        """Words from a byte offset on, where they lie; they may not be changed, and not be used after `close`."""
        return self._data[offset : offset + count * WORD_BYTES].view(np.uint32)


def images_in_slots(slots: Iterable[Slot], ref: CheckpointRef) -> Iterator[Image]:
    """Those of this process."""
    for slot in slots:
        if slot.record is not None and slot.record.ref == ref:
            where = f"memory, rank {slot.record.rank}"
            yield Image(MEMORY, where, slot.record, slot.bytes, discard=slot.discard)


def images_in_vault(
    folder: VaultFolder, ref: CheckpointRef, damaged: Callable[[str, CheckpointError], None]
) -> Iterator[Image]:
    """Those on this node, of any process; whoever takes them closes them.

    Args:
        folder: The run's vault on this node.
        ref: Which checkpoint.
        damaged: Told of each record that cannot be read; it is put aside.
    """
    for opened in open_slots(folder):
        try:
            record = read_record(opened.path)
        except CheckpointError as error:
            drop_record(opened.path)
            opened.close()
            damaged(VAULT, error)
            continue
        if record is None or record.ref != ref:
            opened.close()
            continue
        yield _from_vault(opened, record)


def _from_vault(opened: OpenSlot, record: ImageRecord) -> Image:
    return Image(
        VAULT,
        f"{opened.path}, rank {record.rank}",
        record,
        opened.bytes,
        discard=lambda: drop_record(opened.path),
        close=opened.close,
    )


def _joined(pieces: Sequence[ImagePiece]) -> Iterator[tuple[int, int]]:
    """Byte ranges that cover the pieces, those that touch (or nearly so) as one."""
    start = stop = -1
    for piece in sorted(pieces, key=lambda found: found.offset):
        if start >= 0 and piece.offset - stop <= _GAP_BYTES:
            stop = max(stop, piece.stop_byte)
            continue
        if start >= 0:
            yield start, stop
        start, stop = piece.offset, piece.stop_byte
    if start >= 0:
        yield start, stop
