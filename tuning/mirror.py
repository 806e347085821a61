"""Tells MLflow of an answer: one run for the sweep, one nested run for each row. It may fail; the record is the store."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from stormsail.platform.config.model import RunConfig
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace
from stormsail.supervisor.mirror import settings_for
from stormsail.tuning.answer import Answer
from stormsail.tuning.objective import CellScore, Rate

_RATES = ("success", "divergence", "incidents")
_METRICS = (
    "lr_sensitivity", "spike_loss", "spike_norm", "incidents_per_10k", "max_logit", "update_rms_p99",
    "clip_rate", "best_lr", "final_loss", "final_sd", "wall_s",
)  # fmt: skip


def mirror_answer(answer: Answer, target: RunConfig, place: RunPlace, home: Home) -> str:
    """Write the answer to the target's MLflow, unless its tracking is off; an earlier one of this sweep is replaced.

    Returns:
        Why it could not be written, or "".
    """
    settings = settings_for(target, place.address, home)
    if settings is None:
        return ""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=settings.uri)
        found = client.get_experiment_by_name(settings.experiment)
        experiment = (
            found.experiment_id
            if found is not None
            else client.create_experiment(settings.experiment, artifact_location=settings.artifacts)
        )
        write_runs(client, experiment, answer, f"{place.name}@{place.incarnation}")
    except (MlflowException, OSError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""


def write_runs(client: Any, experiment: str, answer: Answer, sweep: str) -> None:
    """Write the parent run and its nested runs, after removing those that an earlier call wrote.

    Args:
        client: An `MlflowClient`.
        experiment: Id of the experiment.
        answer: What to write.
        sweep: `NAME@NUMBER`.
    """
    for old in client.search_runs([experiment], f"tags.`stormsail.sweep` = '{sweep}'"):
        client.delete_run(old.info.run_id)
    tags = {"stormsail.sweep": sweep, "stormsail.standing": answer.standing}
    parent = client.create_run(experiment, run_name=f"sweep {answer.name}", tags=tags).info.run_id
    client.log_batch(parent, metrics=_metrics([("trials", float(answer.done)), ("wall_s", answer.wall_s)]))
    for row in answer.rows:
        child = client.create_run(
            experiment,
            run_name=str(row.cell),
            tags={"mlflow.parentRunId": parent, "stormsail.sweep": sweep, "stormsail.verdict": row.verdict},
        ).info.run_id
        client.log_batch(child, metrics=_metrics(metrics_of(row)), params=_params(row))
        client.set_terminated(child)
    client.set_terminated(parent)


def metrics_of(row: CellScore) -> Iterator[tuple[str, float]]:
    """The finite figures of a row: MLflow would store nan as 0, and rank it first."""
    for name in _RATES:
        rate: Rate = getattr(row, name)
        yield from ((f"{name}_rate", rate.share), (f"{name}_low", rate.low), (f"{name}_high", rate.high))
    for name in _METRICS:
        value = getattr(row, name)
        if value is not None and math.isfinite(value):
            yield name, float(value)


def _metrics(pairs: Any) -> list[Any]:
    import time

    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    return [Metric(name, value, now_ms, 0) for name, value in pairs]


def _params(row: CellScore) -> list[Any]:
    from mlflow.entities import Param

    cell = row.cell
    return [Param("beta2", f"{cell.beta2:g}"), Param("clip", cell.clip), Param("warmup", f"{cell.warmup:g}")]
