"""The logical grid: frames never cross a multiple of 2^20 elements, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stormsail.platform.checkpoint.shards import Shard

CHUNK_ELEMENTS = 1 << 20


def spans(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut elements `start` to `stop` at the grid; yields (start, stop) pairs, none of them empty."""
    while start < stop:
        end = min(stop, (start // CHUNK_ELEMENTS + 1) * CHUNK_ELEMENTS)
        yield start, end
        start = end


def cut(shard: Shard) -> Iterator[Shard]:
    """The shard in pieces of at most one chunk, as views of the same memory; nothing for an empty shard."""
    origin = shard.spec.start
    for start, stop in spans(origin, shard.spec.stop):
        spec = replace(shard.spec, start=start, count=stop - start)
        yield Shard(spec, shard.values[start - origin : stop - origin])
