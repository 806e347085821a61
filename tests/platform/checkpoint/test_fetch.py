"""Neighbouring frames travel together, and a short answer is never taken for a whole one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stormsail.platform.checkpoint.codec import Base
from stormsail.platform.checkpoint.fetch import Request, fetch_range, open_frame, plan_requests
from stormsail.platform.checkpoint.manifest import FrameEntry, Manifest
from stormsail.platform.errors import CheckpointError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

MIB = 1 << 20


def frame(pack: int, offset: int, length: int) -> FrameEntry:
    return FrameEntry(pack, offset, length, "0" * 32, 0, "master", offset, 1, "0" * 32)


class Refusing(MemoryStore):
    """Answers no range, like a store that refuses one beyond the end."""

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if key.startswith("packs/"):
            raise StorageUnavailableError("416 range not satisfiable", where=key)
        return super().get(key, start=start, end=end)


def saved(kit: Kit, store: MemoryStore) -> Manifest:
    return kit.save(store, kit.state(0), CheckpointRef(1, 10))


def test_neighbours_share_a_request_and_packs_do_not() -> None:
    frames = [frame(1, 0, 10), frame(0, 10, 10), frame(0, 0, 10), frame(0, 30, 10)]
    assert [(request.pack, request.start, request.stop) for request in plan_requests(frames)] == [
        (0, 0, 40),
        (1, 0, 10),
    ]
    assert plan_requests([]) == []


def test_a_wide_gap_is_not_read() -> None:
    assert len(plan_requests([frame(0, 0, 10), frame(0, MIB, 10)])) == 2


def test_a_request_stays_bounded() -> None:
    requests = plan_requests([frame(0, number * 4 * MIB, 4 * MIB) for number in range(10)])
    assert max(request.stop - request.start for request in requests) == 16 * MIB
    assert sum(len(request.frames) for request in requests) == 10


def test_a_pack_that_is_gone_or_short_is_named(kit: Kit) -> None:
    store = kit.store()
    manifest = saved(kit, store)
    request = plan_requests(manifest.frames)[0]
    key = manifest.packs[request.pack].key
    body = store.get(key)
    store.put(key, body[:-1])
    with pytest.raises(CheckpointError, match=f"{len(body) - 1} bytes, expected {len(body)}"):
        fetch_range(store, manifest, request)
    store.delete(key)
    with pytest.raises(CheckpointError, match="missing") as caught:
        fetch_range(store, manifest, request)
    assert caught.value.objects == (key,)


def test_a_store_that_fails_is_told_from_a_pack_that_is_short(kit: Kit) -> None:
    store = Refusing()
    manifest = saved(kit, store)
    request = plan_requests(manifest.frames)[0]
    with pytest.raises(StorageUnavailableError):
        fetch_range(store, manifest, request)
    store.put(manifest.packs[request.pack].key, b"short")
    with pytest.raises(CheckpointError, match="5 bytes"):
        fetch_range(store, manifest, request)


def test_each_check_of_a_frame_speaks_up(kit: Kit) -> None:
    store = kit.store()
    manifest = saved(kit, store)
    good = manifest.frames[0]
    data = fetch_range(store, manifest, Request(good.pack, good.offset, good.offset + good.length, (good,)))
    assert open_frame(manifest, good, data).size == good.count
    wrong = [
        (replace(good, xxh3="0" * 32), "XXH3"),
        (replace(good, count=good.count - 1), "elements, expected"),
        (replace(good, start=good.start + 1), "state digest"),
        (replace(good, component="master"), "state digest"),
        (replace(good, tensor=good.tensor + 1), "state digest"),
    ]
    for entry, message in wrong:
        with pytest.raises(CheckpointError, match=message) as caught:
            open_frame(manifest, entry, data)
        assert caught.value.objects == (manifest.packs[good.pack].key,)


def test_a_record_that_calls_a_whole_frame_a_difference_is_refused(kit: Kit) -> None:
    store = kit.store()
    manifest = saved(kit, store)
    frame = manifest.frames[0]
    data = fetch_range(store, manifest, Request(frame.pack, frame.offset, frame.offset + frame.length, (frame,)))
    with pytest.raises(CheckpointError, match="whole in itself"):
        open_frame(manifest, frame, data, base=Base(np.zeros(frame.count, np.uint32), bytes(16)))
