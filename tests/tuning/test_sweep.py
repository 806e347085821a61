"""A sweep's plan and its answer from storage; the sweep itself is run by tests/cluster."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from stormsail.platform.config.dump import parse_dump
from stormsail.platform.errors import ConfigError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.memory import MemoryStore
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.sweep import Request, progress_line, read_answer, run_sweep


def test_the_answer_is_known_from_the_store_alone(place: RunPlace) -> None:
    assert read_answer(SweepRecords(place.store())).standing == "answered"
    with pytest.raises(ConfigError, match="no plan"):
        read_answer(SweepRecords(MemoryStore()))


def test_a_sweep_goes_on_with_its_own_plan_only(place: RunPlace, tmp_path: Path) -> None:
    plan = SweepRecords(place.store()).plan()
    assert plan is not None
    target = parse_dump(plan.target)
    storage = target.storage.model_copy(update={"url": f"file://{tmp_path}/store"})
    other = target.model_copy(update={"storage": storage})
    request = Request(SweepConfig.model_validate(plan.sweep), other, tmp_path / "large.yaml", tmp_path)
    with pytest.raises(ConfigError, match="started with another plan"):
        run_sweep(request, home=Home(tmp_path / "home"), notify=print, out=io.StringIO())


def test_progress_tells_how_long_it_takes_once_that_is_known() -> None:
    assert progress_line("s", 0, 9, None) == "sweep s: 0 of 9 trials"
    assert progress_line("s", 3, 9, 150.0) == "sweep s: 3 of 9 trials, about 2 min left"
    assert progress_line("s", 9, 9, 0.0) == "sweep s: 9 of 9 trials"
