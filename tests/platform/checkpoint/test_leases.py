"""Leases hold while somebody reads, and run out by themselves."""

from __future__ import annotations

from stormsail.platform.checkpoint.keys import LEASES
from stormsail.platform.checkpoint.leases import LEASE_S, ReadLease, leased
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
    store, clock = MemoryStore(), Clock()
    with ReadLease(store, REFS, clock=clock), ReadLease(store, REFS[:1], clock=clock):
        assert leased(store, now_s=clock.now_s) == set(REFS)
    assert leased(store, now_s=clock.now_s) == frozenset()
    assert list(store.list(LEASES)) == []


def test_the_lease_of_a_reader_that_died_runs_out_and_is_swept_later() -> None:
    store, clock = MemoryStore(), Clock()
    ReadLease(store, REFS, clock=clock).__enter__()
    assert leased(store, now_s=clock.now_s + LEASE_S - 1) == set(REFS)
    assert leased(store, now_s=clock.now_s + LEASE_S + 1) == frozenset()
    assert len(list(store.list(LEASES))) == 1
    assert leased(store, now_s=clock.now_s + 2 * LEASE_S + 1) == frozenset()
    assert list(store.list(LEASES)) == []


def test_a_reader_that_takes_long_renews() -> None:
    store, clock = MemoryStore(), Clock()
    with ReadLease(store, REFS, clock=clock) as lease:
        for _ in range(8):
            clock.now_s += LEASE_S / 2
            lease.renew()
            assert leased(store, now_s=clock.now_s) == set(REFS)


def test_a_store_that_may_only_be_read_is_read_without_a_lease() -> None:
    class ReadOnly(MemoryStore):
        def put(
            self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
        ) -> ObjectInfo:
            raise StorageDeniedError("read only", where=key)

    with ReadLease(ReadOnly(), REFS) as lease:
        lease.renew()


def test_a_damaged_lease_holds_nothing_and_is_swept_when_it_is_old() -> None:
    store = MemoryStore()
    info = store.put(f"{LEASES}x", b"damaged")
    assert leased(store, now_s=info.modified_s) == frozenset()
    assert len(list(store.list(LEASES))) == 1
    leased(store, now_s=info.modified_s + 3 * LEASE_S)
    assert list(store.list(LEASES)) == []
