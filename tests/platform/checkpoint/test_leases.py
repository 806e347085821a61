"""Leases hold while somebody reads, and run out by themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.keys import LEASES
from stormsail.platform.checkpoint.leases import LEASE_S, LeaseWatch, ReadLease
from stormsail.platform.errors import StorageDeniedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo

REFS = (CheckpointRef(1, 10), CheckpointRef(1, 20))


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_read_is_held_until_the_reader_is_done() -> None:
    store, watch = MemoryStore(), LeaseWatch()
    with ReadLease(store, REFS), ReadLease(store, REFS[:1]):
        assert watch.held(store) == set(REFS)
    assert watch.held(store) == frozenset()
    assert list(store.list(LEASES)) == []


def test_the_lease_of_a_reader_that_died_runs_out_and_is_swept_later() -> None:
    store, clock = MemoryStore(), Clock()
    watch = LeaseWatch(clock=clock)
    ReadLease(store, REFS).__enter__()
    assert watch.held(store) == set(REFS)
    clock.now_s += LEASE_S
    assert watch.held(store) == set(REFS)
    clock.now_s += 1
    assert watch.held(store) == frozenset()
    assert len(list(store.list(LEASES))) == 1
    assert LeaseWatch(clock=clock).held(store) == set(REFS)  # who has just begun to look cannot know better
    clock.now_s += LEASE_S
    assert watch.held(store) == frozenset()
    assert list(store.list(LEASES)) == []


@given(st.lists(st.floats(-1e9, 1e9), min_size=8, max_size=8))
def test_a_reader_that_takes_long_renews_and_no_clock_of_the_wall_matters(jumps: list[float]) -> None:
    store, clock, wall = MemoryStore(), Clock(), Clock()
    watch = LeaseWatch(clock=clock)
    with ReadLease(store, REFS, clock=clock, wall_clock=wall) as lease:
        for jump in jumps:
            wall.now_s += jump
            clock.now_s += LEASE_S / 2
            lease.renew()
            assert watch.held(store) == set(REFS)


def test_a_store_that_may_only_be_read_is_read_without_a_lease() -> None:
    class ReadOnly(MemoryStore):
        def put(
            self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
        ) -> ObjectInfo:
            raise StorageDeniedError("read only", where=key)

    with ReadLease(ReadOnly(), REFS) as lease:
        lease.renew()


def test_a_damaged_lease_holds_nothing_and_is_swept_when_it_is_old() -> None:
    store, clock = MemoryStore(), Clock()
    watch = LeaseWatch(clock=clock)
    store.put(f"{LEASES}x", b"damaged")
    assert watch.held(store) == frozenset()
    assert len(list(store.list(LEASES))) == 1
    clock.now_s += 3 * LEASE_S
    watch.held(store)
    assert list(store.list(LEASES)) == []
