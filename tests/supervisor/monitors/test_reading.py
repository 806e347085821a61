"""From a run on its storage to what monitors look at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.run_kit import Staff

from stormsail.platform.errors import ConfigError
from stormsail.platform.runs import RunPlace, begin_incarnation
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.monitors.reading import view_of
from stormsail.supervisor.reading import read_run

Play = Callable[[Staff], None]


def test_a_run_that_is_over_is_looked_at_as_of_its_end(past: RunPlace) -> None:
    run = read_run(past)
    view = view_of(run, now_s=1e12)
    assert view.now_s == run.events[-1].time_s
    assert len(view.rows) == len(run.rows)


def test_a_run_that_runs_is_looked_at_now(played: Callable[[Play], RunPlace]) -> None:
    place = played(lambda staff: staff.steps(0, 3))
    assert view_of(read_run(place), now_s=1e12).now_s == 1e12


def test_a_run_that_has_not_begun_is_an_error(root: StoreAddress) -> None:
    with pytest.raises(ConfigError, match="has not begun"):
        view_of(read_run(begin_incarnation(root, "run")), now_s=0.0)
