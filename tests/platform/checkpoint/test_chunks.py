"""The grid is a property of the tensor, not of the partition."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS, cut, spans
from stormsail.platform.checkpoint.shards import Shard, ShardSpec

ELEMENTS = st.integers(0, 5 * CHUNK_ELEMENTS)


@given(ELEMENTS, ELEMENTS)
def test_spans_cover_the_range_once_and_stay_inside_one_chunk_each(start: int, stop: int) -> None:
    pieces = list(spans(start, stop))
    assert sum(end - begin for begin, end in pieces) == max(0, stop - start)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(pieces))
    assert all(begin // CHUNK_ELEMENTS == (end - 1) // CHUNK_ELEMENTS for begin, end in pieces)


def test_pieces_are_views_that_know_their_place() -> None:
    values = np.arange(CHUNK_ELEMENTS + 10, dtype=np.float32)
    spec = ShardSpec("w", "master", (3 * CHUNK_ELEMENTS,), CHUNK_ELEMENTS - 5, values.size)
    pieces = list(cut(Shard(spec, values)))
    assert [(piece.spec.start, piece.spec.count) for piece in pieces] == [
        (CHUNK_ELEMENTS - 5, 5),
        (CHUNK_ELEMENTS, CHUNK_ELEMENTS),
        (2 * CHUNK_ELEMENTS, 5),
    ]
    assert all(np.shares_memory(piece.values, values) for piece in pieces)
    assert np.array_equal(np.concatenate([piece.values for piece in pieces]), values)


def test_an_empty_shard_gives_no_piece() -> None:
    assert list(cut(Shard(ShardSpec("w", "master", (4,), 4, 0), np.zeros(0, np.float32)))) == []
