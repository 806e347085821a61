"""The command `backtest`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from stormsail.platform.cli import run
from stormsail.supervisor.backtest.commands import register


def command(*arguments: str) -> int:
    def other(app: typer.Typer) -> None:
        app.command("other")(lambda: None)  # typer drops the name of an only command

    return run(["backtest", *arguments], registers=[register, other])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text("".join(f"iter {step}: loss {'nan' if step > 30 else 3.0}, time 5ms\n" for step in range(40)))
    return path


def test_a_plain_log_gives_its_incident(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(str(log), "--json") == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["steps"] == 40
    assert [alarm["step"] for alarm in file["alarms"] if alarm["level"] == "incident"] == [33]


def test_options_reach_the_run(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(str(log), "--rule", "megatron-10x-first100", "--json") == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert {alarm["detector"] for alarm in file["alarms"]} == {"megatron-10x-first100"}


def test_without_a_file_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert command() == 2
    assert "stormsail backtest train.log" in capsys.readouterr().err


def test_the_rules_are_listed_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--list") == 0
    assert "slow-divergence" in capsys.readouterr().out


def test_what_cannot_be_read_is_a_user_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(str(tmp_path / "gone.csv")) == 2
    assert "no such file" in capsys.readouterr().err


def test_what_was_named_and_not_read_leaves_the_rest_and_an_exit_code(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(str(log), str(tmp_path / "gone.csv"), "--json") == 2
    told = capsys.readouterr()
    made = json.loads(told.out)
    assert [file["file"] for file in made["files"]] == [str(log)]
    assert made["unread"] == [f"{tmp_path / 'gone.csv'}: there is no such file"]
    assert "gone.csv: there is no such file" in told.err
