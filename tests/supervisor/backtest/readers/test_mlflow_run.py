"""Runs of MLflow, on a real tracking store in a file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.readers.mlflow_run import read_mlflow

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow's own imports


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Where a run with five rows is kept, and its id."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("DO_NOT_TRACK", "true")
        return _track(tmp_path_factory.mktemp("mlflow"))


def _track(folder: Path) -> tuple[str, str]:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("storm", artifact_location=folder.as_uri())
    run = client.create_run(experiment, run_name="first").info.run_id
    for step in range(5):
        metrics = [Metric("train/loss", 3.0 - step / 4, step, step), Metric("val_loss", 9.0, step, step)]
        if step != 2:
            metrics.append(Metric("train/grad_norm", 0.5, step, step))
        client.log_batch(run, metrics)
    client.log_metric(run, "train/loss", math.nan, step=5)
    return uri, run


def test_metrics_are_matched_by_step(tracked: tuple[str, str]) -> None:
    uri, run = tracked
    curve = read_mlflow(f"mlflow:{run}", Columns(), tracking_uri=uri)
    assert curve.name == "first"
    assert [(point.step, point.loss) for point in curve.points[:5]] == [(step, 3.0 - step / 4) for step in range(5)]
    assert [point.grad_norm for point in curve.points[:3]] == [0.5, 0.5, None]
    assert math.isnan(curve.points[5].loss)


def test_the_metric_can_be_chosen(tracked: tuple[str, str]) -> None:
    uri, run = tracked
    assert read_mlflow(f"mlflow:{run}", Columns(loss="val_loss"), tracking_uri=uri).points[0].loss == 9.0


def test_a_run_that_is_not_there_is_a_user_error(tracked: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="mlflow:nothing"):
        read_mlflow("mlflow:nothing", Columns(), tracking_uri=tracked[0])
