"""Saving behind the back of training: the copy is what was live, and whatever fails is said and costs one save."""

from __future__ import annotations

import mmap
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.fake_s3 import FakeS3, Stall
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import LIMIT_S, checkpoint_meta, within

from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import ShardSpec, Words
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.errors import InternalError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import ObjectInfo, ObjectStore, StoreAddress
from stormsail.platform.vault.slots import Slot
from stormsail.workers import snapshot as module
from stormsail.workers.copying import copy_with_sums
from stormsail.workers.engine import LocalPiece
from stormsail.workers.snapshot import SnapshotWriter

SIZE = 1 << 20
STATE_BYTES = 4 * SIZE


@dataclass(eq=False)
class State:
    """What a snapshot needs of an engine: live tensors and what they are."""

    live: torch.Tensor = field(default_factory=lambda: torch.arange(6, dtype=torch.float32))

    def live_buffers(self) -> Iterator[tuple[LocalPiece, str, torch.Tensor]]:
        yield LocalPiece("w", (self.live.numel(),), 0, self.live.numel()), "master", self.live
        yield LocalPiece("elsewhere", (2,), 2, 0), "master", self.live[:0]

    def state_specs(self) -> list[ShardSpec]:
        return [ShardSpec("w", "master", (self.live.numel(),), 0, self.live.numel())]


class Blocking(MemoryStore):
    """Takes nothing until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if not self.open.is_set():
            self.reached.set()
        self.open.wait(LIMIT_S)
        return super().put(key, data, if_none_match=if_none_match, if_match=if_match)


class Plain:
    """A writer to a store of the test's own, and what it handed over."""

    def __init__(self, store: ObjectStore, **more: Any) -> None:
        self.parts: list[RankPart] = []
        self.missed: list[tuple[int, int, str]] = []
        self.writer = SnapshotWriter(
            store,
            rank=0,
            world_size=1,
            deliver=lambda part, _meta, _s: self.parts.append(part),
            missed=lambda *what: self.missed.append(what),
            deadline_s=LIMIT_S,
            **more,
        )


class Desk:
    """A writer and all that it handed over."""

    def __init__(self, **more: Any) -> None:
        self.store = FragileStore()
        ensure_format(self.store)
        self.parts: list[RankPart] = []
        self.missed: list[tuple[int, int, str]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.before = threading.Event()
        self.before.set()
        self.written: list[int] = []
        self.sealed: list[Slot] = []
        self.slots = [Slot.private(4096) for _ in range(2)]
        self.writer = SnapshotWriter(
            self.store,
            rank=0,
            world_size=1,
            deliver=self._deliver,
            missed=lambda *what: self.missed.append(what),
            written=self._written,
            sealed=self.sealed.append,
            **{"deadline_s": LIMIT_S, "acquire": self._acquire, **more},
        )

    def _acquire(self, size_bytes: int) -> list[Slot]:
        assert size_bytes == 64
        self.before.wait(LIMIT_S)
        return self.slots

    def _written(self, step: int) -> None:
        self.hold.wait(LIMIT_S)
        self.written.append(step)

    def _deliver(self, part: RankPart, meta: CheckpointMeta | None, took_s: float) -> None:
        assert took_s >= 0.0
        self.parts.append(part)
        if meta is not None:
            commit(self.store, [part], meta, parent=None, time_s=1.0)

    def take(self, step: int = 10, state: State | None = None, generation: int = 1) -> bool:
        return self.writer.take(
            state or State(),  # type: ignore[arg-type] # the methods that are used
            generation=generation,
            step=step,
            meta=checkpoint_meta(step),
        )


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.hold.set()
    made.writer.close(LIMIT_S)


def test_a_state_is_written_told_and_handed_over(desk: Desk) -> None:
    assert desk.take()
    assert desk.writer.wait(LIMIT_S)
    assert [part.step for part in desk.parts] == desk.written == [10]
    assert desk.missed == []
    assert [tensor.name for tensor in desk.parts[0].tensors] == ["w"]


def test_training_may_go_on_at_once(desk: Desk) -> None:
    state = State()
    desk.hold.clear()
    desk.take(state=state)
    state.live.fill_(7.0)
    desk.hold.set()
    desk.take(20, State())
    assert desk.writer.wait(LIMIT_S)
    assert desk.parts[0].digest == desk.parts[1].digest


def test_a_copy_that_was_disturbed_is_never_written(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(live: list[torch.Tensor], targets: list[Words]) -> list[int]:
        sums = copy_with_sums(live, targets)
        targets[0][3] ^= 1
        return sums

    monkeypatch.setattr(module, "copy_with_sums", disturbed)
    desk.take()
    assert desk.writer.wait(LIMIT_S)
    assert (desk.parts, desk.sealed) == ([], [])
    assert desk.missed == [(1, 10, "the copy of w differs from the live state")]


def test_a_copy_that_is_disturbed_while_it_is_written_is_never_committed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(store: FragileStore, **more: Any) -> RankPart:
        part = write_part(store, **more)
        desk.slots[0].words[2] ^= 1
        return part

    monkeypatch.setattr(module, "write_part", disturbed)
    desk.take()
    assert desk.writer.wait(LIMIT_S)
    assert (desk.parts, desk.sealed) == ([], [])
    assert [slot.record for slot in desk.slots] == [None, None]
    assert desk.missed == [(1, 10, "the copy of w differs from the live state")]


def test_the_newest_snapshots_stay_in_their_slots(desk: Desk) -> None:
    for step in (10, 20, 30):
        desk.take(step)
        assert desk.writer.wait(LIMIT_S)
    assert [len(list(desk.writer.images(CheckpointRef(1, step)))) for step in (10, 20, 30)] == [0, 1, 1]
    assert len(desk.sealed) == 3
    assert {slot.record.step for slot in desk.slots if slot.record is not None} == {20, 30}


def test_the_first_copy_waits_for_its_slots(desk: Desk) -> None:
    desk.before.clear()
    threading.Timer(0.05, desk.before.set).start()
    assert desk.take()
    assert desk.writer.wait(LIMIT_S)
    assert [part.step for part in desk.parts] == [10]


def test_a_copy_whose_slots_are_not_there_in_time_is_left_out_and_later_ones_do_not_wait_at_all(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    wait_for = threading.Condition.wait_for

    def noted(self: threading.Condition, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        waits.append(timeout)
        return wait_for(self, predicate, 0.0)

    desk.before.clear()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Condition, "wait_for", noted)
        assert [desk.take(step) for step in (10, 20)] == [False, False]
    assert waits == [module._PREPARE_S]
    assert [why.split(":")[0] for _, _, why in desk.missed] == ["its slots are not there yet"] * 2
    desk.before.set()
    assert desk.writer.wait(LIMIT_S)  # as before the last save of a run, which must not be left out
    assert desk.take(30)
    assert desk.writer.wait(LIMIT_S)
    assert [part.step for part in desk.parts] == [30]


def test_saves_that_fail_never_cost_a_snapshot_that_was_written(desk: Desk) -> None:
    """However long the store is away, the newest committed state stays in the nearest place."""
    desk.take(10)
    assert desk.writer.wait(LIMIT_S)
    desk.store.go_down()
    for step in (20, 30, 40):
        desk.take(step)
        assert desk.writer.wait(LIMIT_S)
    assert [ref[1] for ref in desk.missed] == [20, 30, 40]
    assert len(list(desk.writer.images(CheckpointRef(1, 10)))) == 1


def test_memory_stays_where_it_is_however_long_the_store_is_slow() -> None:
    """Two slots and one pack in the making: that is the whole budget, and saves that do not fit are left out."""
    store, state = Blocking(), State(torch.arange(SIZE, dtype=torch.float32))
    ensure_format(store)
    slots: list[Slot] = []

    def acquire(size_bytes: int) -> list[Slot]:
        slots.extend(Slot.private(size_bytes) for _ in range(2))
        return slots

    plain = Plain(store, acquire=acquire)
    writer, parts, missed = plain.writer, plain.parts, plain.missed

    def take(step: int) -> bool:
        return writer.take(state, generation=1, step=step, meta=None)  # type: ignore[arg-type] # as above

    tracemalloc.start()
    try:
        store.open.clear()
        assert take(10)
        assert store.reached.wait(LIMIT_S)
        assert take(20)
        before, resident = tracemalloc.get_traced_memory()[0], resident_bytes()
        assert not any(take(step) for step in range(30, 330, 10))
        assert tracemalloc.get_traced_memory()[0] - before < STATE_BYTES // 4
        assert resident_bytes() - resident < 5 * STATE_BYTES  # thirty copies would be six times that
        assert tracemalloc.get_traced_memory()[1] < 3 * STATE_BYTES  # a pack, and one chunk as it is encoded
    finally:
        tracemalloc.stop()
        store.open.set()
    assert sum(slot.bytes.size for slot in slots) == 2 * STATE_BYTES
    assert len(missed) == 30
    assert {why for _, _, why in missed} == {"2 earlier saves are still being written"}
    assert writer.wait(LIMIT_S)
    assert [part.step for part in parts] == [10, 20]
    writer.close(LIMIT_S)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
def test_a_pack_that_stalls_is_given_up_in_time_and_training_goes_on(tmp_path: Path) -> None:
    server = FakeS3()
    keys = tmp_path / "keys.json"
    keys.write_text('{"access_key": "a", "secret_key": "s"}')
    address = StoreAddress(
        "s3://b/run", endpoint=server.endpoint, region="us-east-1", credentials_file=str(keys), timeout_s=0.5
    )
    store = S3Store(address, patience=Patience(busy_s=0.3, away_s=0.3, first_wait_s=0.02, longest_wait_s=0.05))
    plain = Plain(store)
    writer, parts, missed = plain.writer, plain.parts, plain.missed
    server.rule = lambda method, path, _headers: Stall(30.0) if method == "PUT" and "packs/" in path else None
    state = State()
    assert writer.take(state, generation=1, step=10, meta=None)  # type: ignore[arg-type] # as above
    state.live.add_(1.0)  # training has gone on
    assert writer.wait(LIMIT_S)
    assert [what[:2] for what in missed] == [(1, 10)]
    assert "timed out" in missed[0][2]
    assert (parts, server.objects, server.uploads) == ([], {}, {})
    server.rule = lambda *_: None
    assert writer.take(state, generation=1, step=20, meta=None)  # type: ignore[arg-type] # as above
    assert writer.wait(LIMIT_S)
    assert [part.step for part in parts] == [20]
    writer.close(LIMIT_S)
    server.close()


def test_slots_that_cannot_be_had_are_told_at_the_next_save() -> None:
    desk = Desk(acquire=lambda _size: [Slot.private(1)])
    with pytest.raises(InternalError, match="does not fit"):
        desk.take()
    desk.writer.close(LIMIT_S)


def test_another_engine_of_the_same_shape_uses_the_same_slots(desk: Desk) -> None:
    desk.take(10)
    assert desk.writer.wait(LIMIT_S)
    desk.writer.prepare(State())  # type: ignore[arg-type] # as above
    assert len(list(desk.writer.images(CheckpointRef(1, 10)))) == 1


def test_numbers_that_are_not_finite_are_written_and_counted(desk: Desk) -> None:
    state = State(torch.tensor([np.nan, np.inf, 1.0, 1.0, 1.0, 1.0]))
    desk.take(state=state)
    assert desk.writer.wait(LIMIT_S)
    assert desk.parts[0].nonfinite == 2


def test_a_third_copy_is_left_out_while_two_are_on_their_way(desk: Desk) -> None:
    desk.hold.clear()
    assert [desk.take(step) for step in (10, 20, 30)] == [True, True, False]
    assert desk.missed == [(1, 30, "2 earlier saves are still being written")]
    desk.hold.set()
    assert desk.writer.wait(LIMIT_S)
    assert desk.take(40)


def test_what_an_older_generation_has_not_finished_is_abandoned(desk: Desk) -> None:
    desk.hold.clear()
    desk.take(10)
    desk.take(20)
    desk.writer.drop_before(2)
    desk.hold.set()
    assert desk.writer.wait(LIMIT_S)
    assert desk.missed[-1][:2] == (1, 20)
    desk.take(30, generation=2)
    assert desk.writer.wait(LIMIT_S)
    assert desk.parts[-1].generation == 2


def test_a_save_that_comes_too_late_is_abandoned() -> None:
    desk = Desk(deadline_s=-1.0)
    desk.take()
    assert desk.writer.wait(LIMIT_S)
    assert desk.parts == []
    assert "deadline" in desk.missed[0][2]
    desk.writer.close(LIMIT_S)


def test_a_store_that_fails_costs_the_save_and_not_the_thread(desk: Desk) -> None:
    desk.store.go_down()
    desk.take(10)
    assert desk.writer.wait(LIMIT_S)
    assert desk.missed == [(1, 10, "Nobody answers")]
    desk.store.come_back()
    desk.take(20)
    assert desk.writer.wait(LIMIT_S)
    assert [part.step for part in desk.parts] == [20]


def test_closing_finishes_what_was_taken(desk: Desk) -> None:
    desk.hold.clear()
    desk.take()
    threading.Timer(0.05, desk.hold.set).start()
    desk.writer.close(LIMIT_S)
    assert [part.step for part in desk.parts] == [10]


def test_waiting_has_a_limit(desk: Desk) -> None:
    desk.hold.clear()
    desk.take()
    assert not desk.writer.wait(0.01)
    desk.hold.set()
    assert within(lambda: bool(desk.parts))
