"""Reading checkpoints back, on any number of workers; the one module to import for it.

Only frames that overlap what is wanted are read, with what they build on, each checked before and after decoding. The manifest's completeness
check has added the same digests up to the root, so what is returned is part of exactly the state that was committed,
or an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Never

import numpy as np

from stormsail.platform.checkpoint.commits import (
    CommitScan,
    Problem,
    load_commit,
    load_manifest,
    load_original,
    scan_commits,
)
from stormsail.platform.checkpoint.fetch import Request, plan_requests
from stormsail.platform.checkpoint.manifest import FrameEntry, Manifest
from stormsail.platform.checkpoint.opening import load_links, open_request
from stormsail.platform.checkpoint.records import read_twice
from stormsail.platform.checkpoint.shards import Shard, ShardSpec, Words
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.errors import CheckpointError, StateMismatchError
from stormsail.platform.storage.store import ObjectStore

__all__ = [
    "CommitScan",
    "Problem",
    "load_commit",
    "load_manifest",
    "read_shards",
    "scan_commits",
    "verify",
]


def read_shards(
    store: ObjectStore, manifest: Manifest, wanted: Sequence[ShardSpec], *, threads: int = 4
) -> list[Shard]:
    """The wanted elements as float32, in the order asked for, whatever the world size that wrote them.

    Where a fold turns out to be damaged, the differences are read instead, as long as they are there.

    Only frames that overlap are fetched, each once. Memory: the result plus `threads` requests of at most 16 MiB, and
    about three times that where the checkpoint builds on a keyframe.

    Args:
        store: The run's store.
        manifest: A checked manifest, from `load_manifest`.
        wanted: Which elements; they may overlap.
        threads: Requests in flight.

    Raises:
        CheckpointError: The checkpoint does not have what is wanted, or a frame is missing or damaged.
        StorageError: The store failed.
    """
    try:
        return _read(store, manifest, wanted, threads)
    except CheckpointError as error:
        if not manifest.folded:
            raise
        try:
            return _read(store, load_original(store, load_commit(store, manifest.ref)), wanted, threads)
        except CheckpointError:
            raise error from None


def _read(store: ObjectStore, manifest: Manifest, wanted: Sequence[ShardSpec], threads: int) -> list[Shard]:
    targets = _Targets(manifest, wanted)
    requests = plan_requests(targets.frames)
    links = load_links(store, manifest) if requests else None

    def fetch(request: Request) -> None:
        read_twice(lambda: fetch_once(request))

    def fetch_once(request: Request) -> None:
        for frame, words in open_request(store, manifest, links, request, _give_up, into=targets.room_for):
            targets.take(frame, words)

    if threads == 1 or len(requests) == 1:  # small states are many and quick: a pool costs more than the read
        for request in requests:
            fetch(request)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint-read") as pool:
            for _ in pool.map(fetch, requests):
                pass
    return targets.shards()


class _Targets:
    """Memory for what is wanted, in one piece: it comes from the system in large pages then, at half the price."""

    def __init__(self, manifest: Manifest, wanted: Sequence[ShardSpec]) -> None:
        self._wanted = wanted
        uses = _frames_of(manifest, wanted)
        self.frames = [manifest.frames[index] for index in sorted(uses)]
        self._uses = {manifest.frames[index].place: numbers for index, numbers in uses.items()}
        stops = np.cumsum([spec.count for spec in wanted], dtype=np.int64)
        memory = np.empty(stops[-1] if wanted else 0, dtype=np.uint32)
        self._words = [memory[stop - spec.count : stop] for spec, stop in zip(wanted, stops, strict=True)]

    def room_for(self, frame: FrameEntry) -> Words | None:
        """Where a frame can be decoded to at once, if all of it is wanted in one place."""
        first = self._uses[frame.place][0]
        return self._part(first, frame) if self._covers(first, frame) else None

    def take(self, frame: FrameEntry, words: Words) -> None:
        """Copy a frame's words to wherever else they are wanted."""
        first, *others = self._uses[frame.place]
        for number in others if self._covers(first, frame) else (first, *others):
            start, stop = self._wanted[number].start - frame.start, self._wanted[number].stop - frame.start
            self._part(number, frame)[:] = words[max(start, 0) : stop]

    def shards(self) -> list[Shard]:
        """What was wanted, in its order."""
        return [Shard(spec, words.view(np.float32)) for spec, words in zip(self._wanted, self._words, strict=True)]

    def _covers(self, number: int, frame: FrameEntry) -> bool:
        spec = self._wanted[number]
        return spec.start <= frame.start and frame.stop <= spec.stop

    def _part(self, number: int, frame: FrameEntry) -> Words:
        start = self._wanted[number].start
        return self._words[number][max(frame.start - start, 0) : frame.stop - start]


def _give_up(error: CheckpointError) -> Never:
    raise error


def _frames_of(manifest: Manifest, wanted: Sequence[ShardSpec]) -> dict[int, list[int]]:
    """Which wanted shards need each frame (by index into the manifest's frames)."""
    indexed = _index(manifest)
    shapes = {tensor.name: (number, tensor.shape) for number, tensor in enumerate(manifest.tensors)}
    uses: dict[int, list[int]] = defaultdict(list)
    for number, spec in enumerate(wanted):
        tensor, shape = shapes.get(spec.name, (-1, ()))
        _check_wanted(manifest, spec, tensor, shape)
        for index in _overlapping(manifest, indexed.get((tensor, spec.component), []), spec):
            uses[index].append(number)
    return dict(uses)


def _index(manifest: Manifest) -> dict[tuple[int, str], list[int]]:
    indexed: dict[tuple[int, str], list[int]] = defaultdict(list)
    for index in sorted(range(len(manifest.frames)), key=lambda place: manifest.frames[place].start):
        frame = manifest.frames[index]
        indexed[frame.tensor, frame.component].append(index)
    return indexed


def _check_wanted(manifest: Manifest, spec: ShardSpec, tensor: int, shape: tuple[int, ...]) -> None:
    where = f"checkpoint of step {manifest.step}, generation {manifest.generation}"
    if tensor < 0 or spec.component not in manifest.tensors[tensor].components:
        raise StateMismatchError(
            f"it has no {spec.label}", where=where, todo="the model or the optimizer is not the one that was saved"
        )
    if shape != spec.shape:
        raise StateMismatchError(
            f"{spec.name} has the shape {list(shape)} there, and {list(spec.shape)} here",
            where=where,
            todo="the model is not the one that was saved",
        )


def _overlapping(manifest: Manifest, indices: list[int], spec: ShardSpec) -> Iterator[int]:
    if not spec.count:
        return
    first = bisect_right(indices, spec.start, key=lambda index: manifest.frames[index].start) - 1
    for index in indices[max(first, 0) :]:
        if manifest.frames[index].start >= spec.stop:
            return
        yield index
