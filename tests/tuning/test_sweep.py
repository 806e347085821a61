"""A sweep's plan and its answer from storage; the sweep itself is run by tests/cluster."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tuning.conftest import TARGET

from stormsail.platform.config.dump import dump_config, parse_dump
from stormsail.platform.config.load import load_config
from stormsail.platform.errors import ClusterError, ConfigError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.memory import MemoryStore
from stormsail.supervisor import cluster
from stormsail.tuning.applying import apply_sweep
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


def test_a_sweep_whose_winner_was_applied_goes_on(
    place: RunPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = SweepRecords(place.store())
    plan = records.plan()
    assert plan is not None
    sweep = SweepConfig.model_validate(plan.sweep)
    file = tmp_path / "large.yaml"
    file.write_text(f"{TARGET}storage: {{url: 'file://{tmp_path}/store'}}\n", encoding="utf-8")
    records.store.delete("plan.json")
    records.put_plan(replace(plan, target=dump_config(load_config(file, environ={}))))
    apply_sweep(place, None)
    reached = ClusterError("beyond the plan")

    def connect(*_: object) -> None:
        raise reached

    monkeypatch.setattr(cluster, "connect", connect)

    def go_on(overrides: list[str]) -> None:
        target = load_config(file, environ={}, overrides=overrides)
        request = Request(sweep, target, file, tmp_path)
        run_sweep(request, home=Home(tmp_path / "home"), notify=print, out=io.StringIO())

    with pytest.raises(ClusterError, match="beyond the plan"):
        go_on([])
    for moved in ("optimizer.betas=[0.8,0.95]", "optimizer.weight_decay=0.3", "train.global_batch=16"):
        with pytest.raises(ConfigError, match="started with another plan"):
            go_on([moved])


def test_warm_ups_that_are_one_number_of_steps_are_refused(place: RunPlace, tmp_path: Path) -> None:
    plan = SweepRecords(place.store()).plan()
    assert plan is not None
    sweep = SweepConfig.model_validate({**plan.sweep, "space": {"warmup": [0.0, 0.004]}})
    request = Request(sweep, parse_dump(plan.target), tmp_path / "large.yaml", tmp_path)
    with pytest.raises(ConfigError, match=r"same number of steps on proxy 'w32' \(0 -> 0, 0.004 -> 0\)"):
        run_sweep(request, home=Home(tmp_path / "home"), notify=print, out=io.StringIO())


def test_progress_tells_how_long_it_takes_once_that_is_known() -> None:
    assert progress_line("s", 0, 9, None) == "sweep s: 0 of 9 trials"
    assert progress_line("s", 3, 9, 150.0) == "sweep s: 3 of 9 trials, about 2 min left"
    assert progress_line("s", 9, 9, 0.0) == "sweep s: 9 of 9 trials"
