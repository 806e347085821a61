"""The MLflow mirror: everything once, nothing that is not finite, and whatever becomes of MLflow, no error leaves it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fragile_store import FragileStore

from stormsail.platform import tracking as module
from stormsail.platform.errors import StorageError
from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.series import SeriesWriter
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import StoreAddress
from stormsail.platform.tracking import (
    REPORT_KEY,
    Mirror,
    MirrorSettings,
    Point,
    evaluation_points,
    flat_params,
    points_of,
)

AWAY: tuple[type[BaseException], ...] = (StorageError, OSError)


def row(step: int, **changes: object) -> dict[str, Any]:
    """A row as it lies on the run's storage."""
    values = {
        "step": step,
        "time_s": 1000.5 + step,
        "loss": 5.0,
        "grad_norm": 1.0,
        "clipped_norm": 1.0,
        "lr": 1e-3,
        "lr_factor": 1.0,
        "tokens": 2048,
        "step_s": 0.1,
        "applied": step + 1,
        "generation": 1,
    }
    return {**values, **changes}


def settings(uri: str = "fake", **changes: Any) -> MirrorSettings:
    values: dict[str, Any] = {
        "store": StoreAddress("file:///nowhere"),
        "uri": uri,
        "experiment": "tests",
        "artifacts": None,
        "run_name": "run",
        "params": {"train.steps": "40", "seed": "1"},
        "every_s": 0.01,
    }
    return MirrorSettings(**{**values, **changes})


def add_rows(store: MemoryStore, *rows: dict[str, Any]) -> None:
    writer = SeriesWriter(store)
    writer.add(rows)
    writer.flush()


class TestPoints:
    def test_a_row_becomes_a_point_for_each_metric(self) -> None:
        points, diverged = points_of([row(3, loss=2.5)])
        assert Point("loss", 2.5, 1003500, 3) in points
        assert Point("skipped", 0.0, 1003500, 3) in points
        assert not diverged

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("key", ["loss", "grad_norm"])
    def test_a_value_that_is_not_finite_is_left_out_and_the_run_diverged(self, key: str, value: float) -> None:
        points, diverged = points_of([row(3, **{key: value})])
        assert key not in {point.key for point in points}
        assert diverged

    @given(st.lists(st.floats(), max_size=5), st.floats())
    def test_no_point_is_ever_without_a_finite_value(self, losses: list[float], norm: float) -> None:
        points, _ = points_of([row(step, loss=loss, grad_norm=norm) for step, loss in enumerate(losses)])
        assert all(math.isfinite(point.value) for point in points)


def evaluated(number: int, step: int, loss: float | None) -> Event:
    return Event(number, 1000.5, "evaluation.finished", 1, step, 1, {"loss": loss})


def test_an_evaluation_becomes_a_point_at_the_step_of_its_state_unless_it_is_not_finite() -> None:
    events = [evaluated(1, 10, 2.5), Event(2, 1001.0, "run.started", 1, None, 1, {}), evaluated(3, 20, None)]
    assert evaluation_points(events) == [Point("eval_loss", 2.5, 1000500, 10)]


def test_a_configuration_tree_becomes_dotted_keys() -> None:
    tree = {"name": "run", "train": {"steps": 40, "clip_norm": None}, "drill": {"faults": []}}
    assert flat_params(tree) == {"name": "run", "train.steps": "40", "train.clip_norm": "None", "drill.faults": "[]"}


def test_settings_travel_as_one_line() -> None:
    line = settings(store=StoreAddress("s3://bucket/x", endpoint="http://here", timeout_s=3.0)).to_line()
    assert "\n" not in line
    assert MirrorSettings.from_line(line).to_line() == line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own imports
class TestWithMlflow:
    """A real MLflow, its database in a file: one for all tests, each with an experiment of its own."""

    @pytest.fixture(scope="class")
    def client(self, tmp_path_factory: pytest.TempPathFactory) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
            patch.setenv("DO_NOT_TRACK", "true")
            from mlflow.tracking import MlflowClient

            return MlflowClient(tracking_uri=f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")

    @pytest.fixture
    def mirror(self, client: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Mirror]:
        def make(store: MemoryStore, **changes: Any) -> Mirror:
            place = {"artifacts": str(tmp_path / "artifacts"), "experiment": str(request.node.name)}
            made = Mirror(store, client, settings(**place, **changes))
            made.open()
            return made

        return make

    def test_rows_parameters_and_report_arrive(
        self, client: Any, mirror: Callable[..., Mirror], tmp_path: Path
    ) -> None:
        store = MemoryStore()
        add_rows(store, row(0), row(1, loss=math.nan), row(2, loss=4.0))
        store.put(REPORT_KEY, json.dumps({"exit_code": 0}).encode())
        copy = mirror(store)
        copy.copy()
        copy.finish()
        run = client.get_run(copy._run_id)
        assert run.info.run_name == "run"
        assert run.info.status == "FINISHED"
        assert run.data.params == {"train.steps": "40", "seed": "1"}
        assert run.data.tags["diverged"] == "true"
        history = client.get_metric_history(copy._run_id, "loss")
        assert [(metric.step, metric.value) for metric in history] == [(0, 5.0), (2, 4.0)]
        assert [item.path for item in client.list_artifacts(copy._run_id)] == ["report.json"]

    def test_a_diverged_run_is_found_by_no_query_for_a_small_loss(
        self, client: Any, mirror: Callable[..., Mirror], request: pytest.FixtureRequest
    ) -> None:
        store = MemoryStore()
        add_rows(store, row(0), row(1, loss=math.nan))
        mirror(store).copy()
        experiment = client.get_experiment_by_name(request.node.name).experiment_id
        assert client.search_runs([experiment], "metrics.loss < 0.1") == []

    def test_the_next_mirror_goes_on_where_the_last_one_ended(self, client: Any, mirror: Callable[..., Mirror]) -> None:
        store = MemoryStore()
        add_rows(store, row(0), row(1))
        first = mirror(store)
        first.copy()
        add_rows(store, row(2))
        second = mirror(store, params={"train.steps": "80", "seed": "1", "new": "x"})
        assert second._run_id == first._run_id
        assert second.copy() == first_row_points()
        assert [m.step for m in client.get_metric_history(first._run_id, "loss")] == [0, 1, 2]
        data = client.get_run(first._run_id).data
        assert data.params == {"train.steps": "40", "seed": "1", "new": "x"}
        assert data.tags["changed.train.steps"] == "80"

    def test_a_run_that_goes_on_later_is_not_closed(self, client: Any, mirror: Callable[..., Mirror]) -> None:
        copy = mirror(MemoryStore())
        copy.finish()
        assert client.get_run(copy._run_id).info.status == "RUNNING"

    def test_a_server_that_nobody_hears_is_away_and_nothing_worse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        nobody = Mirror(MemoryStore(), MlflowClient(tracking_uri="http://127.0.0.1:9"), settings())
        with pytest.raises((MlflowException, OSError)):
            nobody.open()

    def test_each_evaluation_arrives_once(self, client: Any, mirror: Callable[..., Mirror], tmp_path: Path) -> None:
        store = MemoryStore()
        journal = Journal.open(store, tmp_path / "journal.jsonl", writer="test")
        for step, loss in ((10, 2.5), (20, 2.0)):
            data = {"loss": loss}
            journal.append("evaluation.finished", time_s=1000.0, generation=1, step=step, attempt=1, data=data)
            assert journal.flush(10.0) == 0
            assert mirror(store).copy() == 1
        copy = mirror(store)
        assert copy.copy() == 0
        history = client.get_metric_history(copy._run_id, "eval_loss")
        assert [(metric.step, metric.value) for metric in history] == [(10, 2.5), (20, 2.0)]


def first_row_points() -> int:
    return len(points_of([row(0)])[0])


class Book:
    """A client that keeps what it is told in memory, and is away when the test says so."""

    def __init__(self) -> None:
        self.away: Exception | None = None
        self.metrics: list[tuple[str, int]] = []
        self.runs = 0
        self.params: dict[str, str] = {}
        self.status = ""
        self.calls = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self.calls.set()
            if self.away is not None:
                raise self.away
            return getattr(self, f"_{name}")(*args, **named)

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def _get_experiment_by_name(self, _name: str) -> Any:
        return None

    def _create_experiment(self, _name: str, **_more: object) -> str:
        return "1"

    def _create_run(self, _experiment: str, **_more: object) -> Any:
        self.runs += 1
        return Namespace(info=Namespace(run_id="r"))

    def _get_run(self, _run_id: str) -> Any:
        return Namespace(data=Namespace(params=self.params))

    def _log_batch(self, _run_id: str, *, metrics: Any = (), params: Any = ()) -> None:
        self.metrics += [(metric.key, metric.step) for metric in metrics]
        self.params |= {param.key: param.value for param in params}

    def _set_tag(self, _run_id: str, _key: str, _value: str) -> None:
        pass

    def _log_dict(self, *_what: object) -> None:
        pass

    def _set_terminated(self, _run_id: str, *, status: str) -> None:
        self.status = status


class Namespace:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


@pytest.mark.filterwarnings("ignore")  # MLflow's own imports
class TestAnOutage:
    """Case 55: down at the start, down in the middle, down at the end."""

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_LAST_WORDS_S", 0.1)

    @pytest.fixture
    def said(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        heard: list[str] = []
        monkeypatch.setattr(module, "_say", lambda kind, **_data: heard.append(kind))
        return heard

    def mirror_in_thread(self, store: MemoryStore, book: Book) -> tuple[threading.Thread, threading.Event, list[int]]:
        ended, codes = threading.Event(), []

        def run() -> None:
            codes.append(module._mirror_until(Mirror(store, book, settings()), ended, 0.005, AWAY))

        thread = threading.Thread(target=run)
        thread.start()
        return thread, ended, codes

    def test_down_at_the_start_it_says_so_once_and_sends_everything_when_it_is_back(self, said: list[str]) -> None:
        store, book = MemoryStore(), Book()
        add_rows(store, row(0), row(1))
        book.away = ConnectionError("refused")
        thread, ended, codes = self.mirror_in_thread(store, book)
        assert book.calls.wait(20)
        assert wait_for(lambda: said == ["tracking.away"])
        book.away = None
        assert wait_for(lambda: "tracking.back" in said)
        ended.set()
        thread.join(20)
        assert codes == [0]
        assert said == ["tracking.away", "tracking.back"]
        assert [step for key, step in book.metrics if key == "loss"] == [0, 1]

    def test_down_in_the_middle_no_row_is_lost_or_sent_twice(self, said: list[str]) -> None:
        store, book = MemoryStore(), Book()
        add_rows(store, row(0))
        thread, ended, codes = self.mirror_in_thread(store, book)
        assert wait_for(lambda: ("loss", 0) in book.metrics)
        book.away = ConnectionError()
        add_rows(store, row(1))
        assert wait_for(lambda: said == ["tracking.away"])
        book.away = None
        assert wait_for(lambda: ("loss", 1) in book.metrics)
        ended.set()
        thread.join(20)
        assert codes == [0]
        assert [step for key, step in book.metrics if key == "loss"] == [0, 1]
        assert book.runs == 1

    def test_down_at_the_end_it_gives_up_in_time_and_says_that_something_is_missing(self, said: list[str]) -> None:
        book = Book()
        book.away = ConnectionError("refused")
        thread, ended, codes = self.mirror_in_thread(MemoryStore(), book)
        ended.set()
        thread.join(20)
        assert codes == [1]

    def test_what_the_last_one_could_not_send_the_next_one_sends(self, said: list[str]) -> None:
        store, book = MemoryStore(), Book()
        add_rows(store, row(0))
        book.away = ConnectionError("refused")
        ended = threading.Event()
        ended.set()
        assert module._mirror_until(Mirror(store, book, settings()), ended, 0.005, AWAY) == 1
        book.away = None
        assert module._mirror_until(Mirror(store, book, settings()), ended, 0.005, AWAY) == 0
        assert ("loss", 0) in book.metrics

    def test_a_run_that_ends_before_the_first_look_is_mirrored_whole(self, said: list[str]) -> None:
        store, book = MemoryStore(), Book()
        add_rows(store, row(0))
        store.put(REPORT_KEY, json.dumps({"exit_code": 4}).encode())
        ended = threading.Event()
        ended.set()
        assert module._mirror_until(Mirror(store, book, settings()), ended, 60.0, AWAY) == 0
        assert book.status == "FAILED"
        assert said == []

    def test_a_storage_that_is_away_is_an_outage_like_any_other(self, said: list[str]) -> None:
        store, book = FragileStore(), Book()
        add_rows(store, row(0))
        store.go_down()
        thread, ended, codes = self.mirror_in_thread(store, book)
        assert wait_for(lambda: said == ["tracking.away"])
        store.come_back()
        assert wait_for(lambda: "tracking.back" in said)
        ended.set()
        thread.join(20)
        assert codes == [0]


def wait_for(holds: Callable[[], bool]) -> bool:
    pause = threading.Event()
    for _ in range(2000):
        if holds():
            return True
        pause.wait(0.01)
    return False
