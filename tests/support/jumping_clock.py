"""A clock of the wall that jumps by hours whenever somebody looks, and a steady one that the test moves."""

from __future__ import annotations

import itertools
import time

import pytest

from stormsail.platform.checkpoint.leases import LeaseWatch
from stormsail.supervisor.keeping import Keeper


def jumping(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """From now on the wall's clock says another hour at each look; gives the keeper's steady one, in seconds."""
    hours = itertools.cycle([0.0, 50.0, -30.0, 9000.0, -9000.0])
    wall, now_s = time.time(), [0.0]
    monkeypatch.setattr(time, "time", lambda: wall + 3600.0 * next(hours))
    keeper._clock = lambda: now_s[0]
    keeper._leases = LeaseWatch(clock=lambda: now_s[0])
    return now_s
