"""The mirror's process: started, heard, ended; whatever becomes of it, the run only notes it."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.platform.test_tracking import row
from tests.support.run_kit import small_config

from stormsail.platform.home import Home
from stormsail.platform.series import SeriesWriter
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.platform.tracking import REPORT_KEY, MirrorSettings
from stormsail.supervisor import mirror as module
from stormsail.supervisor.mirror import MirrorProcess, settings_for

ADDRESS = StoreAddress("file:///somewhere/run/1")


class TestSettings:
    def test_without_a_uri_there_is_no_mirror(self, tmp_path: Path) -> None:
        assert settings_for(small_config(), ADDRESS, Home(tmp_path)) is None

    def test_sqlite_is_a_file_in_the_home_folder(self, tmp_path: Path) -> None:
        found = settings_for(small_config(tracking={}), ADDRESS, Home(tmp_path))
        assert found is not None
        assert found.uri == f"sqlite:///{tmp_path}/mlflow.db"
        assert found.artifacts == str(tmp_path / "mlflow-artifacts")

    def test_a_server_chooses_its_own_place_for_artifacts(self, tmp_path: Path) -> None:
        config = small_config(tracking={"uri": "http://tracking:5000", "experiment": "large"})
        found = settings_for(config, ADDRESS, Home(tmp_path))
        assert found is not None
        assert (found.uri, found.artifacts, found.experiment) == ("http://tracking:5000", None, "large")
        assert found.params["train.steps"] == "40"


def settings(tmp_path: Path, uri: str) -> MirrorSettings:
    return MirrorSettings(
        store=StoreAddress(f"file://{tmp_path}/store"),
        uri=uri,
        experiment="tests",
        artifacts=str(tmp_path / "artifacts"),
        run_name="run",
        params={"seed": "1"},
        every_s=0.1,
    )


@pytest.mark.cluster  # no Ray, but a process that takes seconds to import MLflow
def test_what_the_run_stored_is_in_mlflow_when_it_is_closed(tmp_path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    wanted = settings(tmp_path, f"sqlite:///{tmp_path}/mlflow.db")
    store = open_store(wanted.store)
    process = MirrorProcess(wanted, log=tmp_path / "log", tell=lambda kind, **data: told.append((kind, data)))
    writer = SeriesWriter(store)
    writer.add([row(0), row(1)])
    writer.flush()
    store.put(REPORT_KEY, json.dumps({"exit_code": 0}).encode())
    process.close()
    assert told == []
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select step from metrics where key = 'loss' order by step").fetchall() == [(0,), (1,)]
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)]
    database.close()


def test_one_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_END_LIMIT_S", 0.01)
    told: list[str] = []
    process = MirrorProcess(
        settings(tmp_path, f"sqlite:///{tmp_path}/mlflow.db"),
        log=tmp_path / "log",
        tell=lambda kind, **_data: told.append(kind),
    )
    process.close()
    assert told == ["tracking.incomplete"]
    assert process._process.poll() is not None


def test_one_that_is_dead_before_it_was_told_anything_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    told: list[tuple[str, object]] = []
    process = MirrorProcess(
        settings(tmp_path, "sqlite:////x" + "x" * 100_000),
        log=tmp_path / "log",
        tell=lambda kind, **data: told.append((kind, data)),
    )
    process.close()
    assert told == [("tracking.incomplete", {"exit_code": 1})]
