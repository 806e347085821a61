"""Reads a curve from an MLflow run, by its client."""

from __future__ import annotations

import os

from stormsail.platform.errors import ConfigError, TryLaterError
from stormsail.supervisor.backtest.columns import Columns, choose
from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.readers.table import finish

PREFIX = "mlflow:"


def read_mlflow(address: str, columns: Columns, *, tracking_uri: str | None = None) -> Curve:
    """Read the metrics of one run.

    Args:
        address: `mlflow:RUN_ID`.
        columns: Names of the metrics, or guess.
        tracking_uri: Of the tracking server or folder; None: as MLflow itself finds it.

    Raises:
        ConfigError: There is no such run, or it has no loss.
        TryLaterError: The tracking server does not answer.
    """
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        os.environ.setdefault(name, "true")  # reading a run is no reason to report to anybody
    from mlflow.exceptions import MlflowException, RestException
    from mlflow.tracking import MlflowClient

    run_id = address.removeprefix(PREFIX).lstrip("/")
    try:
        client = MlflowClient(tracking_uri=tracking_uri)
        run = client.get_run(run_id)
        chosen = choose(sorted(run.data.metrics), Columns(None, columns.loss, columns.norm), address)
        losses = client.get_metric_history(run_id, chosen.loss)
        norms = client.get_metric_history(run_id, chosen.norm) if chosen.norm else []
    except RestException as error:
        raise ConfigError(f"MLflow refuses: {error.message}", where=address, todo="check the run's id") from error
    except MlflowException as error:
        kind = ConfigError if error.error_code != "INTERNAL_ERROR" else TryLaterError
        raise kind(f"MLflow cannot read this run: {error.message}", where=address, todo="see --tracking-uri") from error
    by_step = {metric.step: metric.value for metric in norms}
    ordered = sorted(losses, key=lambda metric: (metric.step, metric.timestamp))
    points = [Point(metric.step, metric.value, by_step.get(metric.step)) for metric in ordered]
    notes = tuple(note for note in chosen.notes(columns) if "step column" not in note)
    curve = finish(address, points, notes)
    return Curve(run.info.run_name or run_id, address, curve.points, curve.notes)
