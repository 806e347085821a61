"""Publishing checkpoints: all parts or nothing, of the living generation only, and whatever fails, the thread lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import LIMIT_S, checkpoint_meta, within, written_part

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.errors import FencedError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectInfo
from stormsail.supervisor.committer import Committed, Committer

REF = CheckpointRef(1, 10)


class Office:
    """A committer and all that it was heard to say."""

    def __init__(self, deadline_s: float = LIMIT_S) -> None:
        self.store = FragileStore()
        ensure_format(self.store)
        self.done: list[Committed] = []
        self.missed: list[tuple[int, int, str]] = []
        self.spoilt = 0
        self.hear: Callable[[Committed], None] = self.done.append
        self.committer = Committer(
            self.store,
            deadline_s=deadline_s,
            on_commit=self._committed,
            on_missed=self._missed,
            parent_of=lambda _generation: None,
        )

    def _missed(self, generation: int, step: int, why: str, /, *, finite: bool = True) -> None:
        self.missed.append((generation, step, why))
        self.spoilt += not finite

    def _committed(self, done: Committed) -> None:
        self.hear(done)

    def hold(self) -> threading.Event:
        """The listener takes its time, until the event is set."""
        held = threading.Event()

        def hear(done: Committed) -> None:
            self.done.append(done)
            held.wait(LIMIT_S)

        self.hear = hear
        return held

    def add(self, ref: CheckpointRef, rank: int, world_size: int = 2) -> None:
        meta = checkpoint_meta(ref.step, world_size) if rank == 0 else None
        self.committer.add(written_part(self.store, ref, rank, world_size), meta, 0.25)

    @property
    def commits(self) -> list[CheckpointRef]:
        return [commit.ref for commit in scan_commits(self.store).commits]


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.committer.close()


@pytest.fixture
def hasty() -> Iterator[Office]:
    """One that waits for nobody."""
    made = Office(deadline_s=0.01)
    yield made
    made.committer.close()


def test_with_the_last_part_the_checkpoint_is_published(office: Office) -> None:
    office.add(REF, 1)
    assert office.commits == []
    office.add(REF, 0)
    assert office.committer.drain(LIMIT_S)
    assert office.commits == [REF]
    assert office.done[0].manifest.ref == REF
    assert office.done[0].took_s >= 0.25


def test_without_rank_0s_description_nothing_is_published(office: Office) -> None:
    for rank in (0, 1):
        office.committer.add(written_part(office.store, REF, rank, 2), None, 0.0)
    assert office.committer.settle(LIMIT_S)
    assert office.commits == []


def test_a_part_said_twice_counts_once(office: Office) -> None:
    office.add(REF, 0)
    office.add(REF, 0)
    assert office.commits == []
    office.add(REF, 1)
    assert office.committer.drain(LIMIT_S)
    assert office.commits == [REF]


def test_checkpoints_are_published_in_the_order_of_their_steps(office: Office) -> None:
    held = office.hold()
    for step in (10, 30, 20):
        office.add(CheckpointRef(1, step), 0, world_size=1)
        assert within(lambda: bool(office.done))
    held.set()
    assert office.committer.drain(LIMIT_S)
    assert [done.manifest.step for done in office.done] == [10, 20, 30]


def test_a_part_of_an_older_generation_is_refused(office: Office) -> None:
    office.committer.advance(2)
    office.add(REF, 0, world_size=1)
    assert office.committer.drain(LIMIT_S)
    assert office.commits == []
    assert office.missed == [(1, 10, "rank 0 wrote for a generation that is over")]


def test_a_new_generation_abandons_saves_that_lack_a_part(office: Office) -> None:
    office.add(REF, 0)
    office.committer.advance(2)
    assert office.missed == [(1, 10, "the run moved on before all ranks had written")]
    office.add(CheckpointRef(2, 10), 0, world_size=1)
    assert office.committer.drain(LIMIT_S)
    assert office.commits == [CheckpointRef(2, 10)]


def test_a_save_that_was_complete_when_the_generation_ended_still_counts(office: Office) -> None:
    held = office.hold()
    office.add(REF, 0, world_size=1)
    office.add(CheckpointRef(1, 20), 0, world_size=1)
    office.committer.advance(2)
    held.set()
    assert office.committer.drain(LIMIT_S)
    assert office.commits == [REF, CheckpointRef(1, 20)]


def test_a_rank_that_does_not_write_in_time_costs_the_checkpoint_and_nothing_else(hasty: Office) -> None:
    hasty.add(REF, 0)
    assert within(lambda: bool(hasty.missed))
    assert hasty.missed[0][:2] == (1, 10)
    assert "not all ranks wrote" in hasty.missed[0][2]
    hasty.committer._deadline_s = LIMIT_S
    hasty.add(CheckpointRef(1, 20), 0, world_size=1)
    assert hasty.committer.drain(LIMIT_S)
    assert hasty.commits == [CheckpointRef(1, 20)]


@pytest.mark.parametrize("slow", ["packs/", "manifests/"])
def test_a_store_that_is_too_slow_to_publish_costs_the_checkpoint_and_nothing_else(
    office: Office, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    class Clock:
        now_s = 0.0
        time = staticmethod(time.time)

        def monotonic(self) -> float:
            return self.now_s

    clock = Clock()
    head, put = office.store.head, office.store.put

    def takes_long(key: str) -> None:
        clock.now_s += 2 * LIMIT_S if key.startswith(slow) else 0.0

    def slow_head(key: str) -> ObjectInfo:
        takes_long(key)
        return head(key)

    def slow_put(key: str, data: bytes | memoryview, *, if_none_match: bool = False) -> ObjectInfo:
        takes_long(key)
        return put(key, data, if_none_match=if_none_match)

    part = written_part(office.store, REF, 0)
    with monkeypatch.context() as patched:
        patched.setattr("stormsail.supervisor.committer.time", clock)
        patched.setattr(office.store, "head", slow_head)
        patched.setattr(office.store, "put", slow_put)
        office.committer.add(part, checkpoint_meta(10), 0.0)
        assert office.committer.drain(LIMIT_S)
    assert office.missed == [(1, 10, f"all ranks wrote, but it could not be published within {LIMIT_S:.0f} s")]
    assert office.commits == []
    office.add(CheckpointRef(1, 20), 0, world_size=1)
    assert office.committer.drain(LIMIT_S)
    assert office.commits == [CheckpointRef(1, 20)]


def test_a_store_that_fails_costs_the_checkpoint_and_not_the_thread(office: Office) -> None:
    part = written_part(office.store, REF, 0)
    office.store.go_down()
    office.committer.add(part, checkpoint_meta(10), 0.0)
    assert office.committer.drain(LIMIT_S)
    assert office.missed == [(1, 10, "Nobody answers")]
    office.store.come_back()
    office.add(CheckpointRef(1, 20), 0, world_size=1)
    assert office.committer.drain(LIMIT_S)
    assert office.commits == [CheckpointRef(1, 20)]


def test_a_pack_that_vanished_costs_the_checkpoint(office: Office) -> None:
    part = written_part(office.store, REF, 0)
    office.store.delete(part.packs[0].key)
    office.committer.add(part, checkpoint_meta(10), 0.0)
    assert office.committer.drain(LIMIT_S)
    assert "missing" in office.missed[0][2]


@pytest.mark.parametrize("error", [FencedError("taken over"), StorageUnavailableError("the disk is full")])
def test_a_commit_that_cannot_be_noted_does_not_leave_others_waiting(office: Office, error: Exception) -> None:
    def refuse(_done: Committed) -> None:
        raise error

    office.hear = refuse
    office.add(REF, 0, world_size=1)
    assert office.committer.settle(LIMIT_S)
    office.hear = office.done.append
    office.add(CheckpointRef(1, 20), 0, world_size=1)
    assert office.committer.drain(LIMIT_S)
    assert [done.manifest.step for done in office.done] == [20]


def test_whoever_hears_of_a_refused_part_may_ask_the_committer_back() -> None:
    """The listener takes a lock under which others call the committer: telling it under our own would lock both up."""
    office = Office()
    theirs = threading.RLock()
    inside, finished = threading.Event(), threading.Event()

    def listen(*what: object, **_named: object) -> None:
        inside.set()
        with theirs:
            finished.set()

    office.committer._on_missed = listen
    office.committer.advance(5)
    part = written_part(office.store, REF, 0)
    with theirs:
        threading.Thread(target=office.committer.add, args=(part, None, 0.0), daemon=True).start()
        assert inside.wait(LIMIT_S)
        office.committer.advance(6)
    assert finished.wait(LIMIT_S)
    office.committer.close()


def test_settling_waits_for_what_is_being_published(office: Office) -> None:
    held = office.hold()
    office.add(REF, 0, world_size=1)
    assert not office.committer.settle(0.05)
    held.set()
    assert office.committer.settle(LIMIT_S)


def test_settling_does_not_wait_for_a_rank_that_may_never_write(office: Office) -> None:
    office.add(REF, 0)
    assert office.committer.settle(LIMIT_S)
    assert not office.committer.drain(0.05)


def test_a_state_with_numbers_that_are_not_finite_is_never_published(office: Office) -> None:
    office.add(REF, 0)
    part = written_part(office.store, REF, 1, 2)
    office.committer.add(part.model_copy(update={"nonfinite": 3}), None, 0.25)
    assert office.committer.drain(LIMIT_S)
    assert office.commits == []
    assert office.missed == [(1, 10, "weights or moments hold numbers that are not finite: 3 on rank 1")]
    assert office.spoilt == 1
