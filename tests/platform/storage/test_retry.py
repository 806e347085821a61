"""Waits grow with jitter and end at the limit of the fault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.errors import StorageDeniedError, StorageError, StorageUnavailableError
from stormsail.platform.storage.retry import Fault, FaultClass, Patience, Retries


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def retries(time: Time, patience: Patience) -> Retries:
    return Retries(patience, "put", "s3://b/k", clock=lambda: time.now, sleep=time.sleep)


def busy(kind: FaultClass = FaultClass.BUSY) -> Fault:
    return Fault(kind, StorageUnavailableError("The store answered 503", where="s3://b/k", todo="Wait."))


def until_given_up(time: Time, patience: Patience, fault: Fault) -> StorageError:
    tries = retries(time, patience)
    for _ in range(10_000):
        try:
            tries.failed(fault)
        except StorageError as error:
            return error
    raise AssertionError


@given(st.integers(1, 2000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_zero_and_never_above_the_longest(failures: int, jitter: float) -> None:
    patience = Patience(first_wait_s=0.25, longest_wait_s=5.0)
    assert 0.125 <= patience.wait_s(failures, jitter) <= 5.0
    assert patience.wait_s(failures + 1, jitter) >= patience.wait_s(failures, jitter)


def test_a_final_fault_is_raised_at_once_and_unchanged() -> None:
    time = Time()
    error = StorageDeniedError("no")
    assert until_given_up(time, Patience(), Fault(FaultClass.FINAL, error)) is error
    assert time.waits == []


@pytest.mark.parametrize(
    ("kind", "limit_s"), [(FaultClass.BUSY, 60.0), (FaultClass.AWAY, 15.0), (FaultClass.EXPIRED, 60.0)]
)
def test_each_kind_of_fault_has_its_own_limit(kind: FaultClass, limit_s: float) -> None:
    time = Time()
    error = until_given_up(time, Patience(), busy(kind))
    assert limit_s - 5.0 <= time.now <= limit_s
    assert type(error) is StorageUnavailableError
    assert error.what == f"The store answered 503; put was tried for {time.now:.0f} s"
    assert (error.where, error.todo) == ("s3://b/k", "Wait.")


def test_without_patience_nothing_is_repeated() -> None:
    time = Time()
    until_given_up(time, Patience(busy_s=0.0), busy())
    assert time.waits == []


def test_two_ranks_do_not_come_back_in_step() -> None:
    one, two = Time(), Time()
    until_given_up(one, Patience(), busy())
    until_given_up(two, Patience(), busy())
    assert one.waits != two.waits
