"""Following a sweep from its storage."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from stormsail.platform.errors import TryLaterError
from stormsail.platform.lease import LeaseOwner, RunLease
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.memory import MemoryStore
from stormsail.tuning.records import SweepRecords, trial_key
from stormsail.tuning.watching import OwnerWatch, watch_sweep


def test_it_tells_how_far_the_sweep_is_until_it_is_done(place: RunPlace) -> None:
    records = SweepRecords(place.store())
    last = next(iter(records.trials().values()))
    records.store.delete(trial_key(last.trial.id))

    class Screen(io.StringIO):
        """The last trial is finished when the first line has been read."""

        def flush(self) -> None:
            records.put_trial(last)

    out = Screen()
    watch_sweep(records, out=out, every_s=0.001)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("sweep small: 27 of 28 trials")
    assert lines[-1].startswith("sweep small: 28 of 28 trials")


def broken_off(place: RunPlace) -> SweepRecords:
    records = SweepRecords(place.store())
    records.store.delete(trial_key(next(iter(records.trials()))))
    return records


def test_a_sweep_that_was_killed_is_noticed_in_one_line(place: RunPlace) -> None:
    records = broken_off(place)
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait(30.0)
    dead = replace(LeaseOwner.here("driver"), pid=killed.pid)
    RunLease.acquire(place.store(), dead, now=1e12)
    with pytest.raises(TryLaterError, match="nobody runs this sweep any more: 27 of 28") as ended:
        watch_sweep(records, out=io.StringIO(), every_s=0.001)
    assert ended.value.exit_code == 75


def test_one_that_ended_with_trials_left_is_noticed_too(place: RunPlace) -> None:
    records = broken_off(place)
    RunLease.acquire(place.store(), LeaseOwner.here("driver"), now=1.0).release()
    with pytest.raises(TryLaterError, match="27 of 28"):
        watch_sweep(records, out=io.StringIO(), every_s=0.001)


def test_an_owner_elsewhere_is_gone_when_it_renews_nothing_whatever_the_clocks_say() -> None:
    store = MemoryStore()
    watch = OwnerWatch(store)
    assert watch.gone(0.0)
    far = replace(LeaseOwner.here("driver"), host="elsewhere", pid=os.getpid())
    lease = RunLease.acquire(store, far, now=7.0, ttl_s=60.0)
    assert not watch.gone(1000.0)
    assert not watch.gone(1060.0)
    lease.renew(20.0)
    assert not watch.gone(1070.0)
    assert not watch.gone(1130.0)
    assert watch.gone(1131.0)
    assert not OwnerWatch(store).gone(0.0)
