"""Images: found by checkpoint, checked piece by piece, put aside when damaged."""

from __future__ import annotations

import numpy as np
import pytest
from tests.platform.vault.conftest import REF, Saved

from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault.images import Image, images_in_slots, images_in_vault
from stormsail.platform.vault.places import BUDDY
from stormsail.platform.vault.slots import IMAGE


def in_vault(saved: Saved, ref: CheckpointRef = REF) -> list[Image]:
    return list(images_in_vault(saved.folder, ref, lambda _place, _error: None))


def test_both_ranks_images_are_found_and_right(saved: Saved) -> None:
    found = in_vault(saved)
    assert [image.record.rank for image in found] == [0, 1]
    for image in found:
        for piece in image.record.pieces:
            image.check(piece)
            assert image.find(image.record.elements(piece)) == piece
        image.close()


def test_another_checkpoint_is_not_there(saved: Saved) -> None:
    assert in_vault(saved, CheckpointRef(2, 10)) == []
    assert list(images_in_slots(saved.slots, CheckpointRef(1, 20))) == []


def test_one_flipped_bit_shows(saved: Saved) -> None:
    saved.flip(1)
    [own] = [image for image in images_in_slots(saved.slots, REF) if image.record.rank == 1]
    with pytest.raises(CheckpointError, match="checksum"):
        own.check(own.record.pieces[0])
    own.discard()
    assert len(list(images_in_slots(saved.slots, REF))) == 1
    assert len(in_vault(saved)) == 1


def test_a_record_that_cannot_be_read_is_told_and_put_aside(saved: Saved) -> None:
    path = saved.slots[0].path
    assert path is not None
    path.with_name(path.name + IMAGE).write_bytes(b"nonsense")
    told: list[str] = []
    for _ in range(2):
        images = list(images_in_vault(saved.folder, REF, lambda place, error: told.append(f"{place}: {error.what}")))
        assert [image.record.rank for image in images] == [1]
        for image in images:
            image.close()
    assert len(told) == 1
    assert told[0].startswith("vault: the record is damaged")


def test_a_remote_image_is_fetched_in_few_ranges(saved: Saved) -> None:
    ranges: list[tuple[int, int]] = []

    def fetch(start: int, stop: int, target: np.ndarray) -> None:
        ranges.append((start, stop))
        target[:] = saved.slots[0].bytes[start:stop]

    record = saved.record(0)
    image = Image(BUDDY, "there", record, np.zeros(record.size_bytes, np.uint8), discard=lambda: None, fetch=fetch)
    with pytest.raises(CheckpointError):
        image.check(record.pieces[0])
    image.load(record.pieces)
    for piece in record.pieces:
        image.check(piece)
    assert ranges == [(0, record.size_bytes)]
    image.load([])
    assert len(ranges) == 1
