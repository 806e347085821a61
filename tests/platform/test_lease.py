"""One owner for a run: races, death, silence, and coming back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

from stormsail.platform.errors import (
    FencedError,
    InternalError,
    PreconditionFailedError,
    RunExistsError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.lease import KEY, TTL_S, LeaseOwner, RunLease, _encode, live_owner, read_lease
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import ObjectInfo, StoreAddress

ONE = LeaseOwner("one", "host-1", 11, "boot-1/pid:[1]")
TWO = LeaseOwner("two", "host-2", 22, "boot-2/pid:[1]")
NEAR = LeaseOwner("near", "host-1", 33, "boot-1/pid:[1]")


def alive(_pid: int) -> bool:
    return True


def dead(_pid: int) -> bool:
    return False


class LosesAnswers(MemoryStore):
    """Stores what it is given, and says that it is away, as often as told."""

    losses = 0

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        info = super().put(key, data, if_none_match=if_none_match, if_match=if_match)
        if self.losses:
            self.losses -= 1
            raise StorageUnavailableError("lost")
        return info


def test_the_store_says_when_a_lease_was_written() -> None:
    clock = iter([10.0, 20.0])
    lease = RunLease.acquire(MemoryStore(clock=lambda: next(clock)), ONE, now=9e9)
    assert lease.stored_s == 10.0
    lease.renew(9e9)
    assert lease.stored_s == 20.0


def test_a_run_without_a_lease_is_taken() -> None:
    store = MemoryStore()
    assert read_lease(store) is None
    RunLease.acquire(store, ONE, now=100.0)
    held = read_lease(store)
    assert held is not None
    assert (held.owner, held.started_s, held.renewed_s, held.ttl_s) == (ONE, 100.0, 100.0, TTL_S)


def test_a_live_owner_is_named_with_host_and_time_and_what_to_do() -> None:
    store = MemoryStore("runs/night")
    RunLease.acquire(store, ONE, now=0.0).renew(40.0)
    with pytest.raises(RunExistsError) as caught:
        RunLease.acquire(store, TWO, now=50.0, is_alive=alive)
    text = str(caught.value)
    for words in ("'night'", "host-1", "11", "1970-01-01 00:00:00 UTC", "10 s ago", "stormsail attach night"):
        assert words in text
    assert caught.value.exit_code == 2


def test_the_name_of_the_run_can_be_told() -> None:
    store = MemoryStore("runs/night/3")
    RunLease.acquire(store, ONE, now=0.0)
    with pytest.raises(RunExistsError, match="'night'"):
        RunLease.acquire(store, TWO, now=1.0, run="night")


def test_a_live_owner_cannot_be_taken_over_even_if_asked() -> None:
    store = MemoryStore()
    RunLease.acquire(store, ONE, now=0.0)
    with pytest.raises(RunExistsError):
        RunLease.acquire(store, TWO, now=TTL_S, take_over=True)


def test_a_silent_owner_is_replaced_only_when_asked_and_is_fenced() -> None:
    store = MemoryStore()
    first = RunLease.acquire(store, ONE, now=0.0)
    with pytest.raises(RunExistsError, match="may be dead or cut off") as caught:
        RunLease.acquire(store, TWO, now=TTL_S + 1)
    assert "--take-over" in caught.value.todo
    second = RunLease.acquire(store, TWO, now=TTL_S + 1, take_over=True)
    with pytest.raises(FencedError, match=r"taken over by host-2 \(process 22\)"):
        first.renew(TTL_S + 2)
    with pytest.raises(FencedError):
        first.release()
    second.renew(TTL_S + 3)


def test_an_owner_that_is_dead_on_this_machine_is_replaced_at_once() -> None:
    store = MemoryStore()
    first = RunLease.acquire(store, ONE, now=0.0)
    RunLease.acquire(store, NEAR, now=1.0, is_alive=dead)
    with pytest.raises(FencedError):
        first.renew(2.0)


@pytest.mark.parametrize(
    "near",
    [
        replace(NEAR, boot_id="boot-9/pid:[1]"),
        replace(NEAR, boot_id="boot-1/pid:[2]"),
        replace(NEAR, boot_id=""),
        replace(NEAR, host="host-9"),
    ],
    ids=["another boot", "another container", "unknown boot", "another host"],
)
def test_process_numbers_of_another_machine_say_nothing(near: LeaseOwner) -> None:
    store = MemoryStore()
    RunLease.acquire(store, replace(ONE, boot_id=near.boot_id and ONE.boot_id), now=0.0)
    with pytest.raises(RunExistsError):
        RunLease.acquire(store, near, now=1.0, is_alive=dead)


def test_real_processes_are_told_dead_from_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    store = MemoryStore()
    RunLease.acquire(store, replace(LeaseOwner.here("child"), pid=child.pid), now=0.0)
    with pytest.raises(RunExistsError):
        RunLease.acquire(store, LeaseOwner.here("me"), now=1.0)
    child.kill()
    child.communicate(timeout=10.0)
    RunLease.acquire(store, LeaseOwner.here("me"), now=1.0)


def test_the_same_owner_takes_its_lease_again_and_fences_its_older_self() -> None:
    store = MemoryStore()
    older = RunLease.acquire(store, ONE, now=0.0)
    newer = RunLease.acquire(store, replace(ONE, pid=99), now=1.0)
    with pytest.raises(FencedError):
        older.renew(2.0)
    newer.renew(2.0)


def test_a_released_run_is_free_and_release_may_be_repeated() -> None:
    store = MemoryStore()
    lease = RunLease.acquire(store, ONE, now=0.0)
    lease.release()
    lease.release()
    held = read_lease(store)
    assert held is not None
    assert held.released
    with pytest.raises(InternalError):
        lease.renew(1.0)
    RunLease.acquire(store, TWO, now=1.0)


def test_a_renewal_moves_the_time_and_the_generation() -> None:
    store = MemoryStore()
    lease = RunLease.acquire(store, ONE, now=0.0)
    lease.renew(30.0, generation=4)
    lease.renew(20.0)  # by a clock that was put right
    held = read_lease(store)
    assert held == lease.record
    assert held is not None
    assert (held.renewed_s, held.generation) == (20.0, 4)
    assert not held.expired(20.0 + TTL_S)
    assert held.expired(20.1 + TTL_S)


def test_a_clock_that_jumped_ahead_makes_no_run_impossible_to_take_over() -> None:
    store, now = MemoryStore(), 30 * 86400.0
    RunLease.acquire(store, ONE, now=0.0).renew(365 * 86400.0)  # and then its owner died
    with pytest.raises(RunExistsError, match=r"clock was \d+ s ahead") as caught:
        RunLease.acquire(store, TWO, now=now)
    assert "--take-over" in caught.value.todo
    assert live_owner(store, now=now) is not None
    taken = RunLease.acquire(store, TWO, now=now, take_over=True)
    assert taken.record.renewed_s == now


def test_a_renewal_whose_answer_was_lost_is_recognised_as_ours() -> None:
    store = LosesAnswers()
    lease = RunLease.acquire(store, ONE, now=0.0)
    store.losses = 1
    with pytest.raises(StorageUnavailableError):
        lease.renew(10.0)
    lease.renew(20.0)
    assert lease.record == read_lease(store)


class RefusesWhatItTook(MemoryStore):
    """Takes a conditional put and says that it was refused: somebody on the way has sent it twice."""

    refusals = 0
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        info = super().put(key, data, if_none_match=if_none_match, if_match=if_match)
        if self.refusals and if_match is not None:
            self.refusals -= 1
            self.meanwhile()
            raise PreconditionFailedError("refused")
        return info


def test_a_renewal_or_release_that_was_taken_and_refused_is_recognised_as_ours() -> None:
    store = RefusesWhatItTook()
    lease = RunLease.acquire(store, ONE, now=100.0)
    store.refusals = 1
    lease.renew(110.0)
    assert store.refusals == 0
    lease.renew(120.0)
    store.refusals = 1
    lease.release()
    held = read_lease(store)
    assert held is not None
    assert (held.renewed_s, held.released) == (120.0, True)


def test_who_takes_over_between_two_tries_fences_the_owner() -> None:
    store = RefusesWhatItTook()
    lease = RunLease.acquire(store, ONE, now=100.0)
    store.meanwhile = lambda: RunLease.acquire(store, TWO, now=300.0, take_over=True)
    store.refusals = 1
    with pytest.raises(FencedError, match="taken over by host-2"):
        lease.renew(110.0)


def test_a_lease_that_can_never_be_written_is_tried_a_limited_number_of_times() -> None:
    store = RefusesWhatItTook()
    lease = RunLease.acquire(store, ONE, now=100.0)
    store.meanwhile = lambda: store.put(KEY, _encode(replace(lease.record, renewed_s=105.0)))
    store.refusals = 1000
    with pytest.raises(StorageUnavailableError, match="in 8 tries"):
        lease.renew(110.0)


def test_a_deleted_lease_fences_its_owner() -> None:
    store = MemoryStore()
    lease = RunLease.acquire(store, ONE, now=0.0)
    store.delete(KEY)
    with pytest.raises(FencedError, match="deleted"):
        lease.renew(1.0)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"owner": {}}', b'{"owner": {"id": 1, "host": "", "pid": "x", "boot_id": ""}}']
)
def test_a_damaged_lease_is_never_taken_for_a_free_run(body: bytes) -> None:
    store = MemoryStore()
    store.put(KEY, body)
    with pytest.raises(StorageError, match="cannot be understood"):
        RunLease.acquire(store, ONE, now=0.0, take_over=True)


def test_this_process_knows_who_it_is() -> None:
    here = LeaseOwner.here("me")
    assert here.id == "me"
    assert "pid:[" in here.boot_id


@pytest.mark.parametrize("start", ["fresh", "expired", "released"])
def test_of_many_that_start_at_once_one_owns_the_run(s3_address: StoreAddress, start: str) -> None:
    store = S3Store(s3_address)
    if start != "fresh":
        lease = RunLease.acquire(store, ONE, now=0.0)
        if start == "released":
            lease.release()

    def begin(number: int) -> bool:
        owner = replace(TWO, id=f"racer-{number}", pid=number)
        try:
            RunLease.acquire(store, owner, now=TTL_S + 1, take_over=True)
        except RunExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(8))) == 1


class Leases(RuleBasedStateMachine):
    """Whatever happens, at most one claim can renew, and only a lease that may be taken is taken."""

    held: Bundle[RunLease] = Bundle("held")

    @initialize()
    def begin(self) -> None:
        self.store = MemoryStore()
        self.now = 0.0
        self.owner_claim = ""

    @rule(seconds=st.floats(0.0, 2.5 * TTL_S))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(hours=st.floats(-50.0, 50.0))
    def jump(self, hours: float) -> None:
        """A clock is set, or the next to act lives on a machine whose clock is another."""
        self.now += 3600.0 * hours

    @rule(
        target=held,
        owner=st.sampled_from([ONE, TWO, NEAR]),
        take_over=st.booleans(),
        is_alive=st.sampled_from([alive, dead]),
    )
    def acquire(self, owner: LeaseOwner, take_over: bool, is_alive: Callable[[int], bool]) -> RunLease:
        before = read_lease(self.store)
        try:
            lease = RunLease.acquire(self.store, owner, now=self.now, take_over=take_over, is_alive=is_alive)
        except RunExistsError:
            assert before is not None
            assert not before.released
            assert before.owner.id != owner.id
            assert not (take_over and (before.expired(self.now) or before.is_ahead(self.now)))
            return RunLease(self.store, before, self.store.put("unused", b""))
        if before and not before.released and before.owner.id != owner.id and is_alive is alive:
            assert before.expired(self.now) or before.is_ahead(self.now)
            assert take_over
        self.owner_claim = lease.record.claim
        return lease

    @precondition(lambda self: self.owner_claim)
    @rule(lease=held)
    def renew(self, lease: RunLease) -> None:
        if lease.record.released:
            return
        ours = lease.record.claim == self.owner_claim
        try:
            lease.renew(self.now)
        except FencedError:
            held = read_lease(self.store)
            assert held is not None
            assert not ours or held.released
        else:
            assert ours

    @rule(lease=held)
    def release(self, lease: RunLease) -> None:
        ours = lease.record.claim == self.owner_claim
        try:
            lease.release()
        except FencedError:
            held = read_lease(self.store)
            assert held is not None
            assert not ours or held.released


TestLeases = Leases.TestCase


@given(now=st.floats(0, 1e10), ttl=st.floats(0.1, 1e6), later=st.floats(0, 1e7))
def test_a_lease_is_live_for_its_whole_time(now: float, ttl: float, later: float) -> None:
    record = RunLease.acquire(MemoryStore(), ONE, now=now, ttl_s=ttl).record
    assert record.expired(now + later) == (now + later > now + ttl)


def test_the_owner_of_a_lease_elsewhere_is_taken_for_alive_until_it_runs_out() -> None:
    store = MemoryStore()
    elsewhere = LeaseOwner(id="x", host="another-host", pid=1, boot_id="b")
    RunLease.acquire(store, elsewhere, now=100.0, ttl_s=30.0)
    held = live_owner(store, now=120.0)
    assert held is not None
    assert held.owner.host == "another-host"
    assert live_owner(store, now=131.0) is None


def test_a_lease_that_was_given_back_or_never_taken_has_no_live_owner() -> None:
    store = MemoryStore()
    assert live_owner(store, now=1.0) is None
    RunLease.acquire(store, ONE, now=1.0).release()
    assert live_owner(store, now=2.0) is None
