"""The record of a snapshot: where each shard lies, and what proves that it is right."""

from __future__ import annotations

import numpy as np
import pytest
from tests.platform.vault.conftest import Saved

from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import InternalError
from stormsail.platform.vault.image import ALIGNMENT_BYTES, describe, offsets


def test_shards_lie_one_behind_the_other_each_aligned() -> None:
    specs = [ShardSpec("w", component, (40,), 0, count) for component, count in (("a", 40), ("b", 0), ("c", 1))]
    starts, size = offsets(specs)
    assert starts == [0, 192, 192]
    assert size == 256
    assert all(start % ALIGNMENT_BYTES == 0 for start in starts)


def test_a_piece_has_the_digest_of_the_frame_that_holds_the_same_elements(saved: Saved) -> None:
    frames = {
        (saved.manifest.tensors[frame.tensor].name, frame.component, frame.start, frame.count): frame.digest
        for frame in saved.manifest.frames
    }
    pieces = {
        saved.record(rank).elements(piece): piece.digest for rank in (0, 1) for piece in saved.record(rank).pieces
    }
    assert pieces == frames


def test_the_record_is_of_its_rank_and_checkpoint(saved: Saved) -> None:
    assert [(saved.record(rank).ref, saved.record(rank).rank) for rank in (0, 1)] == [
        (saved.manifest.ref, 0),
        (saved.manifest.ref, 1),
    ]
    assert saved.record(0).size_bytes <= saved.slots[0].bytes.size


def test_a_part_of_other_shards_is_refused(saved: Saved) -> None:
    other = Shard(ShardSpec("other", "master", (3,), 0, 3), np.zeros(3, np.float32))
    with pytest.raises(InternalError, match="no shard"):
        describe(saved.parts[0], [other], [0])
