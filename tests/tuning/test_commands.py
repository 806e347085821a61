"""The commands that look at a sweep and apply it, from its storage alone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stormsail.platform.cli import run as run_command
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import CheckFailedError, ClusterError, RunExistsError
from stormsail.platform.lease import TTL_S, LeaseOwner, RunLease
from stormsail.platform.runs import RunPlace, begin_incarnation
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import cluster
from stormsail.tuning import commands, mirror
from stormsail.tuning import sweep as sweeps
from stormsail.tuning.answer import Answer, build_answer
from stormsail.tuning.commands import register
from stormsail.tuning.objective import Measured
from stormsail.tuning.records import SweepRecords, trial_key
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import all_settings, core_cells

Command = Callable[..., tuple[int, str, str]]
Answered = tuple[SweepConfig, dict[str, Measured]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; gives its exit code and what it said."""
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))

    def run(*words: str) -> tuple[int, str, str]:
        code = run_command(list(words), registers=[register])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def store(place: RunPlace, tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def test_status_prints_the_table(command: Command, store: str) -> None:
    code, out, _ = command("sweep", "status", "small", "--storage", store)
    assert code == 0
    assert "standing: answered" in out


def test_status_writes_json_csv_and_a_page(command: Command, store: str, tmp_path: Path) -> None:
    table, page = tmp_path / "t.csv", tmp_path / "t.html"
    words = ("--json", "--watch", "--csv", str(table), "--html", str(page))
    code, out, _ = command("sweep", "status", "small", "--storage", store, *words)
    said = json.loads(out)
    assert code == 0
    assert (said["version"], said["standing"], said["winner"]["cell"]["beta2"]) == (1, "answered", 0.95)
    assert said["sweep"]["rows"][0]["verdict"] == "winner"
    assert table.read_text(encoding="utf-8").startswith("beta2,")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_watching_a_sweep_that_nobody_runs_ends_with_code_75(
    command: Command, store: str, place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = SweepRecords(place.store())
    records.store.delete(trial_key(next(iter(records.trials()))))
    monkeypatch.setattr(commands, "_WATCH_S", 0.001)
    code, out, err = command("sweep", "status", "small", "--storage", store, "--watch")
    assert code == 75
    assert out.splitlines() == ["sweep small: 27 of 28 trials"]
    assert "nobody runs this sweep any more: 27 of 28 trials are measured" in err


def test_apply_says_what_it_changed(command: Command, store: str, tmp_path: Path) -> None:
    code, out, _ = command("sweep", "apply", "small", "--storage", store, "--json")
    assert code == 0
    assert json.loads(out)["certificate"] == str(tmp_path / "large.certificate.json")
    code, out, _ = command("sweep", "apply", "small", "--storage", store)
    assert "optimizer.lr" in out
    assert "certificate, valid for exactly these settings" in out


def test_what_is_no_command_is_a_file(command: Command) -> None:
    code, _, err = command("sweep", "none.yaml")
    assert code == 2
    assert "none.yaml: there is no such file" in err


def test_help_names_the_commands(command: Command) -> None:
    code, out, _ = command("sweep", "--help")
    assert code == 0
    assert "apply" in out
    assert "status" in out


def test_a_table_that_cannot_be_written_is_said(command: Command, store: str, tmp_path: Path) -> None:
    code, _, err = command("sweep", "status", "small", "--storage", store, "--csv", str(tmp_path))
    assert code == 2
    assert "cannot be written" in err


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    """A sweep over the bowl, which a driver on a machine that has been started anew since has begun."""
    (tmp_path / "bowl.yaml").write_text(
        "name: bowl\ntrain: {steps: 9, global_batch: 4, micro_batch: 4}\nschedule: {warmup_steps: 1}\n"
        "model: {factory: 'tests.support.quadratic:model'}\n"
        "data: {factory: 'tests.support.quadratic:data', sequence_tokens: 4}\n"
        f"storage: {{url: 'file://{tmp_path}/own'}}\n",
        encoding="utf-8",
    )
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: mine\ntarget: bowl.yaml\nparametrisation: standard\nproxies: [{name: w, steps: 100}]\n", encoding="utf-8"
    )
    found = begin_incarnation(StoreAddress(f"file://{tmp_path}/own").child("sweeps"), "mine")
    gone = LeaseOwner("gone", socket.gethostname(), 1, "before the reboot")
    RunLease.acquire(found.store(), gone, now=time.time() - 2 * TTL_S)
    return file


def test_a_sweep_whose_machine_is_gone_can_be_taken_over(
    command: Command, sweep_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: object) -> None:
        raise ClusterError("beyond the lease")

    monkeypatch.setattr(cluster, "connect", reached)
    code, _, err = command("sweep", str(sweep_file))
    assert code == RunExistsError.exit_code
    assert "--take-over" in err
    code, _, err = command("sweep", str(sweep_file), "--take-over")
    assert "beyond the lease" in err


@pytest.fixture
def hopeless(answered: Answered, target: RunConfig) -> Answer:
    """The answer of a sweep in which every trial diverged."""
    sweep, measured = answered
    lost = {
        key: replace(one, figures=replace(one.figures, diverged="loss is nan", final_loss=None))
        for key, one in measured.items()
    }
    return build_answer(sweep, target, core_cells(sweep, all_settings(sweep.space)), lost)


def test_a_sweep_in_which_everything_diverged_prints_its_table_and_ends_with_code_3(
    command: Command, sweep_file: Path, hopeless: Answer, place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "run_sweep", lambda *_, **__: sweeps.Ended(place, hopeless))
    monkeypatch.setattr(mirror, "mirror_answer", lambda *_: "")
    code, out, err = command("sweep", str(sweep_file))
    assert code == CheckFailedError.exit_code
    assert "standing: no setting was stable" in out
    assert "nothing was stable" in err


def test_the_table_is_out_before_anything_that_may_fail(
    command: Command, sweep_file: Path, answer: Answer, place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("MLflow hangs up")

    monkeypatch.setattr(sweeps, "run_sweep", lambda *_, **__: sweeps.Ended(place, answer))
    monkeypatch.setattr(mirror, "mirror_answer", broken)
    code, out, _ = command("sweep", str(sweep_file))
    assert code != 0
    assert "standing: answered" in out
