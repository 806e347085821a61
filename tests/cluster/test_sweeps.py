"""Sweeps on a real Ray: NaN trials, a killed worker, a killed driver, two at once, and trials that are runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.machine import Machine, ending, wait_for

from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace
from stormsail.supervisor import places
from stormsail.tuning.finding import find_sweep
from stormsail.tuning.objective import Measured
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.sweep import remembered_as

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

TRIALS = 5  # four learning rates and the control; 1.1 diverges slowly enough for the scheduler to end it


def write(machine: Machine, name: str, *, steps: int = 40, data: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A sweep over the bowl, whose band ends at a learning rate of 1."""
    target = machine.write(
        f"{name}-target",
        train={"global_batch": 1, "micro_batch": 1, "clip_norm": None},
        model={"factory": "bowl:model", "args": {}},
        data={"factory": "bowl:data", "args": data or {}, "sequence_tokens": 4},
        optimizer={"factory": "bowl:descent", "lr": 0.1},
        schedule={"warmup_steps": 0, "min_ratio": 1.0},
    )
    # The base's own args belong to another factory.
    tree = json.loads(target.read_text(encoding="utf-8"))
    tree["model"], tree["data"]["args"] = {"factory": "bowl:model"}, data or {}
    target.write_text(json.dumps(tree), encoding="utf-8")
    sweep = {
        "name": name,
        "target": target.name,
        "parametrisation": "standard",
        "proxies": [{"name": "bowl", "steps": steps}],
        "seeds": [1],
        "space": {"lr": {"centre": 0.1, "factors": [1, 4, 11, 1e6]}, "beta2": [0.95], "clip": ["off"], "warmup": [0]},
        "control": {"lr_factor": 1e8},
        "trials": {"checkpoint_steps": 10},
        **changes,
    }
    path = machine.folder / f"{name}.yaml"
    path.write_text(json.dumps(sweep), encoding="utf-8")
    return path


def place(machine: Machine, name: str) -> RunPlace:
    return find_sweep(Home(machine.home), name, None, print)


def measured(machine: Machine, name: str) -> dict[str, Measured]:
    return SweepRecords(place(machine, name).store()).trials()


def test_nan_is_a_result_and_a_killed_worker_is_none(machine: Machine, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.touch()
    done = machine.run("sweep", write(machine, "traps", data={"trap": str(trap)}), "--json").json
    assert not trap.exists()
    found = measured(machine, "traps").values()
    assert len(found) == TRIALS
    assert sum(one.restarts for one in found) == 1
    assert [bool(one.figures.diverged) for one in sorted(found, key=lambda one: one.trial.lr)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert done["standing"] == "answered"
    row = done["sweep"]["rows"][0]
    assert (row["verdict"], row["stable"], row["trials"], row["best_lr"]) == ("winner", 2, 4, 0.4)
    assert done["sweep"]["edges"][0]["edge"] == {"lr": 0.4, "unstable": pytest.approx(1.1)}
    assert "sweep" in machine.run("sweep", "status", "traps").out


def test_a_killed_driver_loses_nothing_while_another_sweep_shares_the_cluster(machine: Machine) -> None:
    slow = write(machine, "first", data={"pace_s": 0.1})
    other = write(
        machine,
        "second",
        steps=30,
        space={"lr": {"centre": 0.2, "factors": [1, 2]}, "beta2": [0.9], "clip": ["off"], "warmup": [0]},
    )
    with machine.started("sweep", slow) as first, machine.started("sweep", other) as second:
        before = wait_for(lambda: _known(machine, "first"), bool, within_s=400.0)
        first.kill()
        first.wait(60.0)
        ended = ending(second, within_s=500.0)
    assert ended.code == 0, ended
    assert len(before) < TRIALS
    assert {one.trial.cell.beta2 for one in measured(machine, "second").values() if not one.trial.control} == {0.9}
    machine.run("sweep", slow)
    after = measured(machine, "first")
    assert len(after) == TRIALS
    assert before.items() <= after.items()
    assert {one.trial.cell.beta2 for one in after.values() if not one.trial.control} == {0.95}


def _known(machine: Machine, name: str) -> dict[str, Measured]:
    """The results so far; none before the sweep's place is known on this machine."""
    if places.recall(Home(machine.home), remembered_as(name)) is None:
        return {}
    return measured(machine, name)


def test_a_trial_can_be_a_run_and_a_tame_control_makes_a_sweep_void(machine: Machine) -> None:
    path = machine.folder / "runs.yaml"
    machine.write("runs-target", cluster={"workers": 2})
    sweep = {
        "name": "runs",
        "target": "runs-target.yaml",
        "proxies": [{"name": "w16", "steps": 12, "d_model": 16, "layers": 1}],
        "seeds": [1],
        "space": {"lr": {"centre": 1e-3, "factors": [1]}, "beta2": [0.95], "clip": [1.0], "warmup": [0.1]},
        "trials": {"kind": "supervised"},
    }
    path.write_text(json.dumps(sweep), encoding="utf-8")
    ended = machine.run("sweep", path, "--json", expect=3, timeout_s=900.0)
    assert json.loads(ended.out.splitlines()[0])["standing"] == "void"
    found = measured(machine, "runs")
    assert {one.figures.steps for one in found.values()} == {12}
    one = next(one for one in found.values() if not one.trial.control)
    [name] = [path.name for path in (machine.home / "runs").glob(f"runs-{one.trial.id}-*")]
    run = machine.read(name)
    assert run.record.outcome == "finished"
    assert json.loads(run.record.config)["optimizer"]["args"] == {"hidden_lr_scale": 1.0}
