"""MLflow as a mirror that may fail: a process of its own that copies the run's storage to MLflow and can stop at any time.

The record is the run's own storage. The mirror reads rows and the journal's evaluations from there, so nothing has to be buffered for it: after
an outage it simply goes on from its cursor, which lies on the run's storage too. It shares no thread and no lock
with training or with the supervisor. Run as `python -m stormsail.platform.tracking`, arguments as JSON on the first
line of stdin; when stdin ends it sends what is left, within a limit, and ends. What happens to it, it says as
JSON lines on stdout.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stormsail.platform.errors import ObjectMissingError, StorageError
from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.series import iter_series_objects
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import ObjectStore, StoreAddress

CURSOR_KEY = "tracking/mlflow.json"
REPORT_KEY = "tracking/report.json"
EVALUATED = "evaluation.finished"
MAX_BATCH = 1000
MAX_PARAMS = 100
_PARAM_CHARACTERS = 500
_METRICS = ("loss", "grad_norm", "clipped_norm", "lr", "lr_factor", "tokens", "step_s", "applied", "generation")
_LAST_WORDS_S = 20.0


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """What the mirror is started with.

    Attributes:
        store: The run's store.
        uri: MLflow tracking URI.
        experiment: Experiment name.
        artifacts: Where a new experiment keeps its artifacts, or None for the server's choice.
        run_name: The run's name.
        params: Parameters of the run, flat.
        every_s: Seconds between two batches.
    """

    store: StoreAddress
    uri: str
    experiment: str
    artifacts: str | None
    run_name: str
    params: dict[str, str]
    every_s: float

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> MirrorSettings:
        """The opposite of `to_line`."""
        record = json.loads(line)
        return cls(**{**record, "store": StoreAddress(**record["store"])})


@dataclass(frozen=True, slots=True)
class Point:
    """One metric value.

    Attributes:
        key: Metric name.
        value: Finite.
        time_ms: Milliseconds since the epoch.
        step: The step.
    """

    key: str
    value: float
    time_ms: int
    step: int


def points_of(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Point], bool]:
    """Metric points of rows, and whether any value was not finite (pure).

    MLflow stores nan as 0, so that a diverged run would rank first: such values are left out and the run is tagged.
    """
    points: list[Point] = []
    diverged = False
    for row in rows:
        values = {key: row[key] for key in _METRICS} | {"skipped": int(row["step"]) + 1 - int(row["applied"])}
        for key, value in values.items():
            if value is None or not math.isfinite(value):
                diverged = diverged or key in ("loss", "grad_norm")
                continue
            points.append(Point(key, float(value), int(row["time_s"] * 1000), int(row["step"])))
    return points, diverged


def evaluation_points(events: Iterable[Event]) -> list[Point]:
    """The loss of each evaluation on held-out samples, at the step of its state; one that is not finite has none (pure)."""
    found = ((event, event.data.get("loss")) for event in events if event.kind == EVALUATED)
    return [
        Point("eval_loss", loss, int(event.time_s * 1000), event.step or 0)
        for event, loss in found
        if isinstance(loss, float)
    ]


class Mirror:
    """Copies rows and evaluations to MLflow; all methods may raise what the MLflow client raises.

    Args:
        store: The run's store.
        client: An `MlflowClient`.
        settings: As started.
    """

    def __init__(self, store: ObjectStore, client: Any, settings: MirrorSettings) -> None:
        self._store = store
        self._client = client
        self._settings = settings
        self._run_id = ""
        self._after: str | None = None
        self._after_event = 0
        self._diverged = False

    def open(self) -> None:
        """Find the run in MLflow that this run was mirrored to before, or make one with its parameters."""
        try:
            known = json.loads(self._store.get(CURSOR_KEY))
            self._run_id, self._after, self._after_event = known["run_id"], known["after"], known["after_event"]
        except ObjectMissingError:
            self._create()
        self._log_params()

    def copy(self) -> int:
        """Send rows and evaluations that have come since; returns how many points were sent."""
        sent = 0
        for key, rows in iter_series_objects(self._store, after=self._after):
            points, diverged = points_of(rows)
            for start in range(0, len(points), MAX_BATCH):
                self._log(points[start : start + MAX_BATCH])
            if diverged and not self._diverged:
                self._client.set_tag(self._run_id, "diverged", "true")
                self._diverged = True
            sent += len(points)
            self._after = key
            self._save()
        return sent + self._copy_evaluations()

    def _copy_evaluations(self) -> int:
        events = Journal.read(self._store, after=self._after_event)
        points = evaluation_points(events)
        for start in range(0, len(points), MAX_BATCH):
            self._log(points[start : start + MAX_BATCH])
        self._after_event = events[-1].number if events else self._after_event
        if points:
            self._save()
        return len(points)

    def _log(self, points: Sequence[Point]) -> None:
        self._client.log_batch(self._run_id, metrics=[_metric(point) for point in points])

    def finish(self) -> None:
        """Send the report, if the run has left one, and close the run in MLflow."""
        try:
            report = json.loads(self._store.get(REPORT_KEY))
        except ObjectMissingError:
            return  # the run goes on later
        self._client.log_dict(self._run_id, report, "report.json")
        ok = report.get("exit_code") == 0
        self._client.set_terminated(self._run_id, status="FINISHED" if ok else "FAILED")

    def _create(self) -> None:
        experiment = self._client.get_experiment_by_name(self._settings.experiment)
        identity = (
            experiment.experiment_id
            if experiment is not None
            else self._client.create_experiment(self._settings.experiment, artifact_location=self._settings.artifacts)
        )
        made = self._client.create_run(
            identity, run_name=self._settings.run_name, tags={"stormsail.store": self._store.url}
        )
        self._run_id = made.info.run_id
        self._save()

    def _save(self) -> None:
        cursor = {"run_id": self._run_id, "after": self._after, "after_event": self._after_event}
        self._store.put(CURSOR_KEY, json.dumps(cursor).encode())

    def _log_params(self) -> None:
        """Send what MLflow does not have yet.

        It refuses another value for a parameter, so what was changed when the run went on becomes a tag.
        """
        from mlflow.entities import Param

        held = self._client.get_run(self._run_id).data.params
        wanted = {key: value[:_PARAM_CHARACTERS] for key, value in self._settings.params.items()}
        new = [Param(key, value) for key, value in wanted.items() if key not in held]
        for start in range(0, len(new), MAX_PARAMS):
            self._client.log_batch(self._run_id, params=new[start : start + MAX_PARAMS])
        for key, value in wanted.items():
            if held.get(key, value) != value:
                self._client.set_tag(self._run_id, f"changed.{key}", value)


def _metric(point: Point) -> Any:
    from mlflow.entities import Metric

    return Metric(point.key, point.value, point.time_ms, point.step)


def flat_params(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration tree as dotted keys with text values (pure)."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flat_params(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def main() -> int:
    """Mirror until stdin ends."""
    os.nice(10)  # training comes first
    os.environ.update(
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="1",
        MLFLOW_HTTP_REQUEST_TIMEOUT="5",
        MLFLOW_DISABLE_TELEMETRY="true",
        DO_NOT_TRACK="true",
    )
    settings = MirrorSettings.from_line(sys.stdin.readline())
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    mirror = Mirror(open_store(settings.store), MlflowClient(tracking_uri=settings.uri), settings)
    return _mirror_until(mirror, ended, settings.every_s, (MlflowException, StorageError, OSError))


def _mirror_until(
    mirror: Mirror, ended: threading.Event, every_s: float, away_errors: tuple[type[BaseException], ...]
) -> int:
    """Copy every now and then until told to end; 0 if everything was sent."""
    opened, away = False, False
    while not ended.wait(0.0 if not opened and not away else every_s):
        try:
            if not opened:
                mirror.open()
                opened = True
            mirror.copy()
        except away_errors as error:
            if not away:
                _say("tracking.away", error=(str(error).splitlines() or [type(error).__name__])[0][:300])
            away = True
        else:
            if away:
                _say("tracking.back")
            away = False
    return _last_words(mirror, away_errors, away=away)


def _last_words(mirror: Mirror, away_errors: tuple[type[BaseException], ...], *, away: bool) -> int:
    limit, pause = time.monotonic() + _LAST_WORDS_S, threading.Event()
    while True:
        try:
            mirror.open()
            mirror.copy()
            mirror.finish()
        except away_errors:
            if time.monotonic() >= limit:
                return 1
            pause.wait(0.5)
        else:
            if away:
                _say("tracking.back")
            return 0


def _say(kind: str, **data: str) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **data}) + "\n")
    sys.stdout.flush()


def _wait_for_end(ended: threading.Event) -> None:
    while sys.stdin.readline():
        pass
    ended.set()


if __name__ == "__main__":
    sys.exit(main())
