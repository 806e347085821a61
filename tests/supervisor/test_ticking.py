"""The thread with the clock: the lease is kept, an outage is told, ranks are looked at, and nothing ends in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import LIMIT_S, data_of, kinds, within

from stormsail.platform.errors import FencedError
from stormsail.platform.journal import Journal
from stormsail.platform.lease import LeaseOwner, LeaseRecord, RunLease, read_lease
from stormsail.supervisor import ticking
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.ticking import LEASE_TTL_S, Ticker

ACQUIRED_S = 1.0


class Clockwork:
    """A ticker of a run that does nothing else; `looks` counts how often its ranks were looked at."""

    def __init__(self, folder: Path) -> None:
        self.store = FragileStore()
        self.ledger = Ledger(self.store, folder, writer="one", deadline_s=0.1)
        self.looks = 0
        self.at_look: Callable[[], None] = lambda: None
        self.lost: list[Exception] = []
        lease = RunLease.acquire(self.store, LeaseOwner.here("one"), now=ACQUIRED_S, ttl_s=LEASE_TTL_S)
        self.ticker = Ticker(self.ledger, lease, look=lambda: None, watch=self._watch, on_lost=self.lost.append)
        self.begun_s = time.monotonic()

    def _watch(self) -> None:
        self.looks += 1
        self.at_look()

    def tick(self, after_s: float) -> None:
        self.ticker.tick(self.begun_s + after_s)

    @property
    def lease(self) -> LeaseRecord:
        held = read_lease(self.store)
        assert held is not None
        return held

    def rob(self) -> None:
        """Another supervisor takes the run."""
        RunLease.acquire(
            self.store, LeaseOwner("two", "elsewhere", 1, ""), now=ACQUIRED_S + 1e6, ttl_s=LEASE_TTL_S, take_over=True
        )


@pytest.fixture
def clockwork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    monkeypatch.setattr(ticking, "_TICK_S", 0.01)
    return Clockwork(tmp_path)


def test_the_lease_is_renewed_well_before_it_runs_out_and_not_at_each_look(clockwork: Clockwork) -> None:
    clockwork.tick(1.0)
    assert clockwork.lease.renewed_s == ACQUIRED_S
    clockwork.tick(LEASE_TTL_S / 2)
    assert clockwork.lease.renewed_s > ACQUIRED_S


def test_a_lease_that_was_given_back_is_not_renewed_and_that_is_no_error(clockwork: Clockwork) -> None:
    """The run is tidied up a moment longer, and the thread still looks at the clock."""
    clockwork.ticker.release()
    clockwork.tick(LEASE_TTL_S)
    assert clockwork.lease.released


def test_a_lease_that_another_has_taken_is_the_end(clockwork: Clockwork) -> None:
    clockwork.rob()
    with pytest.raises(FencedError):
        clockwork.tick(LEASE_TTL_S)


def test_a_store_that_stays_away_is_told_once_and_so_is_its_return(clockwork: Clockwork) -> None:
    clockwork.store.go_down()
    clockwork.ledger.note("step.done")
    for after_s in (6.0, 12.0, 18.0, 24.0, 30.0):
        clockwork.tick(after_s)
    clockwork.store.come_back()
    clockwork.tick(36.0)
    clockwork.ledger.flush(LIMIT_S)
    events = Journal.read(clockwork.store)
    assert [kind for kind in kinds(events) if kind.startswith("store.")] == ["store.away", "store.back"]
    assert "Nobody answers" in data_of(events, "store.away")["why"]


def test_a_store_that_is_away_holds_up_the_look_at_ranks_for_one_tick_at_most(clockwork: Clockwork) -> None:
    clockwork.store.go_down()
    clockwork.tick(LEASE_TTL_S)
    clockwork.tick(LEASE_TTL_S + 1.0)
    assert clockwork.looks == 1


def test_the_thread_ends_with_the_run(clockwork: Clockwork) -> None:
    clockwork.ticker.start()
    assert within(lambda: clockwork.looks > 1)
    clockwork.ledger.over.set()
    assert within(lambda: "stormsail-tick" not in {thread.name for thread in threading.enumerate()})
    assert clockwork.lost == []


def test_a_thread_that_breaks_says_so(clockwork: Clockwork) -> None:
    bug = ValueError("a bug")

    def fail() -> None:
        raise bug

    clockwork.at_look = fail
    clockwork.ticker.start()
    assert within(lambda: clockwork.lost == [bug])
