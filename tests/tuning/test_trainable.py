"""What one Tune trial does: result first, report afterwards, and nothing twice."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.tuning.proxy import trial_config
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Trial
from stormsail.tuning.trainable import Job, StoredState, run_job
from stormsail.workers.lean_imports import set_deterministic

Make = Callable[..., SweepConfig]


@pytest.fixture
def job(bowl: RunConfig, make_sweep: Make, tmp_path: Path) -> Iterator[Job]:
    import torch

    threads, home, paths = torch.get_num_threads(), os.environ.get("STORMSAIL_HOME"), list(sys.path)
    sweep = make_sweep(parametrisation="standard", proxies=[{"name": "w32", "steps": 12}])
    trial = Trial("w32", Cell(0.95, "off", 0.0), 0.1, 1)
    yield Job(
        trial=trial,
        config=dump_config(trial_config(bowl, sweep, trial)),
        store=StoreAddress(f"file://{tmp_path}/store"),
        kind="bare",
        rungs=(50,),
        checkpoint_steps=5,
        time_limit_s=3600.0,
        gpu=False,
        home=str(tmp_path / "home"),
        import_paths=(str(tmp_path),),
    )
    set_deterministic(deterministic=False)
    torch.set_num_threads(threads)
    sys.path[:] = paths
    os.environ.pop("STORMSAIL_HOME", None)
    if home is not None:
        os.environ["STORMSAIL_HOME"] = home


def records_of(job: Job) -> SweepRecords:
    return SweepRecords(open_store(job.store))


def test_the_result_is_kept_before_the_last_report(job: Job) -> None:
    told: list[dict[str, object]] = []

    def tell(said: dict[str, object]) -> None:
        if said["percent"] == 100:
            assert records_of(job).has_trial(job.trial.id)
        told.append(said)

    run_job(job, tell)
    assert [said["percent"] for said in told] == [50, 100]
    measured = records_of(job).trials()[job.trial.id]
    assert measured.figures.steps == 12
    assert records_of(job).checkpoint(job.trial.id) is None


def test_a_trial_that_was_killed_goes_on_and_one_with_a_result_is_not_run_again(job: Job) -> None:
    class Killed(Exception):  # noqa: N818 - stands for a signal
        pass

    def kill(said: dict[str, object]) -> None:
        raise Killed

    with pytest.raises(Killed):
        run_job(job, kill)
    assert records_of(job).checkpoint(job.trial.id) is not None
    run_job(job, lambda _: None)
    measured = records_of(job).trials()[job.trial.id]
    assert (measured.restarts, measured.figures.diverged, measured.figures.steps) == (1, "", 12)
    run_job(replace(job, config="no configuration"), lambda _: None)
    assert records_of(job).trials() == {job.trial.id: measured}


def test_a_trial_over_its_time_is_unfinished_and_no_divergence(job: Job) -> None:
    told: list[dict[str, object]] = []
    run_job(replace(job, time_limit_s=1e-9), told.append)
    assert "over its time limit" in str(told[-1]["fault"])
    assert told[-1]["score"] == 0.0
    assert records_of(job).trials() == {}
    assert records_of(job).checkpoint(job.trial.id) is not None
    run_job(job, told.append)
    assert "fault" not in told[-1]
    assert records_of(job).trials()[job.trial.id].figures.diverged == ""


def test_a_trial_that_diverges_reports_its_result_with_the_score(job: Job) -> None:
    from stormsail.platform.config.dump import parse_dump

    config = parse_dump(job.config)
    hot = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"lr": 3.0})})
    told: list[dict[str, object]] = []
    run_job(replace(job, config=dump_config(hot)), told.append)
    assert "measured" in told[0]


def test_state_is_kept_for_its_own_trial_only(job: Job) -> None:
    StoredState(records_of(job), "a").save(b"state")
    assert StoredState(records_of(job), "a").load() == b"state"
    assert StoredState(records_of(job), "b").load() is None
