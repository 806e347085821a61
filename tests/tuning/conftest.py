"""A target and sweeps so small that a trial takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.runs import RunPlace, begin_incarnation
from stormsail.platform.storage.store import StoreAddress
from stormsail.tuning.answer import Answer, build_answer
from stormsail.tuning.metrics import Figures
from stormsail.tuning.objective import Measured
from stormsail.tuning.records import Plan, SweepRecords
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Trial, all_settings, control_trials, core_cells, trials_of

Make = Callable[..., Any]


@pytest.fixture
def target() -> RunConfig:
    """A run of the built-in model at width 64."""
    return RunConfig.model_validate(
        {
            "name": "large",
            "train": {"steps": 1000, "global_batch": 32, "micro_batch": 4},
            "model": {"args": {"d_model": 64, "heads": 4, "layers": 4}},
            "data": {"sequence_tokens": 64},
        }
    )


@pytest.fixture
def bowl() -> RunConfig:
    """A run on the quadratic bowl, whose edge is known."""
    return RunConfig.model_validate(
        {
            "name": "bowl",
            "train": {"steps": 500, "global_batch": 4, "micro_batch": 4, "clip_norm": None},
            "model": {"factory": "tests.support.quadratic:model"},
            "data": {"factory": "tests.support.quadratic:data", "sequence_tokens": 4},
            "optimizer": {"factory": "tests.support.quadratic:descent"},
            "schedule": {"min_ratio": 1.0},
        }
    )


@pytest.fixture
def make_sweep() -> Make:
    """A sweep, with some of its keys replaced."""

    def make(**changes: Any) -> SweepConfig:
        base: dict[str, Any] = {
            "name": "small",
            "target": "large.yaml",
            "proxies": [{"name": "w32", "steps": 100, "d_model": 32, "layers": 2, "global_batch": 8}],
            "seeds": [1, 2],
            "space": {"lr": {"centre": 0.01, "factors": [0.5, 1, 2]}, "clip": [1.0, "off"], "warmup": [0.0, 0.05]},
        }
        return SweepConfig.model_validate({**base, **changes})

    return make


@pytest.fixture
def make_measured() -> Make:
    """A trial's result: stable with this final loss, or diverged for a reason."""

    def make(
        trial: Trial | None = None, *, final: float | None = 2.0, diverged: str = "", restarts: int = 0, **figures: Any
    ) -> Measured:
        base: dict[str, Any] = {
            "diverged": diverged,
            "diverged_step": 7 if diverged else None,
            "steps": 100,
            "initial_loss": 5.0,
            "final_loss": final,
            "spike_loss": 0.0,
            "spike_norm": 0.0,
            "incidents_per_10k": 0.0,
            "max_logit": 1.0,
            "update_rms_p99": 0.9,
            "clip_rate": 0.25,
            "norm_p50": 0.5,
            "curve": ((0, 5.0),),
        }
        known = trial or Trial("w32", Cell(0.95, "1", 0.05), 0.01, 1)
        return Measured(known, Figures(**{**base, **figures}), wall_s=1.5, restarts=restarts)

    return make


@pytest.fixture
def answered(target: RunConfig, make_sweep: Make, make_measured: Make) -> tuple[SweepConfig, dict[str, Measured]]:
    """A sweep with every trial measured: beta2 0.95 with clip 1 is best, and the control fails."""
    sweep = make_sweep(
        proxies=[{"name": "w32", "steps": 100, "d_model": 32}, {"name": "w48", "steps": 100, "d_model": 48}],
        space={"lr": {"factors": [1, 4, 16]}, "beta2": [0.95, 0.999], "clip": [1.0], "warmup": [0.05]},
    )
    made = [make_measured(trial, diverged="it rose") for trial in control_trials(sweep)]
    for trial in trials_of(sweep, core_cells(sweep, all_settings(sweep.space))):
        good = trial.cell.beta2 < 0.99
        made.append(
            make_measured(
                trial,
                final=(2.0 if good else 2.2) + trial.lr,
                diverged="" if good or trial.lr < 0.1 else "non-finite loss",
            )
        )
    return sweep, {one.trial.id: one for one in made}


@pytest.fixture
def answer(target: RunConfig, answered: tuple[SweepConfig, dict[str, Measured]]) -> Answer:
    """What that sweep says."""
    sweep, measured = answered
    return build_answer(sweep, target, core_cells(sweep, all_settings(sweep.space)), measured)


@pytest.fixture
def place(tmp_path: Path, target: RunConfig, answered: tuple[SweepConfig, dict[str, Measured]]) -> RunPlace:
    """The same sweep in a store of its own, its target on disk."""
    sweep, measured = answered
    file = tmp_path / "large.yaml"
    file.write_text(TARGET, encoding="utf-8")
    found = begin_incarnation(StoreAddress(f"file://{tmp_path}/store").child("sweeps"), sweep.name)
    records = SweepRecords(found.store())
    records.put_plan(Plan(sweep.model_dump(mode="json"), dump_config(target), str(file), 1.0))
    records.put_proposed(0, core_cells(sweep, all_settings(sweep.space)))
    for one in measured.values():
        records.put_trial(one)
    return found


TARGET = """\
# The large run.
name: large
train:
  steps: 1000          # a thousand
  global_batch: 32
  micro_batch: 4
model:
  args: {d_model: 64, heads: 4, layers: 4}   # as published
data: {sequence_tokens: 64}
optimizer:
  lr: 1e-3             # from last year
"""
