"""The answer in MLflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stormsail.platform.config.infrastructure import TrackingSection
from stormsail.platform.config.model import RunConfig
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace
from stormsail.tuning.answer import Answer
from stormsail.tuning.mirror import metrics_of, mirror_answer


def test_only_finite_figures_are_sent(answer: Answer) -> None:
    row = replace(answer.rows[0], final_loss=None, lr_sensitivity=float("nan"))
    sent = dict(metrics_of(row))
    assert {"final_loss", "lr_sensitivity"}.isdisjoint(sent)
    assert sent["success_rate"] == 1.0


def test_tracking_that_is_off_is_left_alone(answer: Answer, target: RunConfig, place: RunPlace, tmp_path: Path) -> None:
    off = target.model_copy(update={"tracking": TrackingSection(uri=None)})
    assert mirror_answer(answer, off, place, Home(tmp_path)) == ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own imports
def test_the_sweep_is_one_run_with_a_nested_run_for_each_setting(
    answer: Answer, target: RunConfig, place: RunPlace, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    for _ in range(2):  # the second time replaces the first
        assert mirror_answer(answer, target, place, Home(tmp_path)) == ""
    client = MlflowClient(tracking_uri=f"sqlite:///{Home(tmp_path).mlflow_db}")
    experiment = client.get_experiment_by_name("stormsail")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(parents) == 1
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    assert sorted(run.data.params["beta2"] for run in children) == ["0.95", "0.999"]
