"""Whatever a command does, the process ends with the right code and at most one message."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

from stormsail.platform.cli import GROUP, load_registers, run
from stormsail.platform.errors import (
    CheckpointError,
    ConfigError,
    InternalError,
    LadderExhaustedError,
    StoppedError,
    TryLaterError,
    UserCodeError,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def ending_with(error: BaseException, *arguments: str) -> int:
    """Run a command that raises."""

    def fail(*, as_json: bool = typer.Option(False, "--json")) -> None:
        raise error

    def register(app: typer.Typer) -> None:
        app.command("fail")(fail)
        app.command("other")(lambda: None)

    return run(["fail", *arguments], registers=[register])


def test_a_command_that_returns_ends_with_0() -> None:
    def register(app: typer.Typer) -> None:
        app.command("quiet")(lambda: None)
        app.command("other")(lambda: None)

    assert run(["quiet"], registers=[register]) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InternalError("w"), 1),
        (ConfigError("w"), 2),
        (CheckpointError("w"), 3),
        (LadderExhaustedError("w"), 4),
        (StoppedError("w"), 5),
        (UserCodeError("w"), 6),
        (TryLaterError("w"), 75),
        (typer.Exit(3), 3),
    ],
)
def test_each_family_has_its_exit_code(error: BaseException, code: int) -> None:
    assert ending_with(error) == code


def test_an_error_is_one_message_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    ending_with(ConfigError("it is wrong", where="run.yaml:3", todo="change it"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: run.yaml:3: it is wrong\nchange it\n"


def test_debug_shows_the_traceback_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    ending_with(ConfigError("it is wrong"), "--debug")
    captured = capsys.readouterr().err
    assert "Traceback" in captured
    assert captured.count("it is wrong") == 1


def test_the_users_traceback_is_shown_with_the_users_error(capsys: pytest.CaptureFixture[str]) -> None:
    ending_with(UserCodeError("model.factory raised KeyError", details="Traceback: first cause\n"))
    assert capsys.readouterr().err.endswith("\nTraceback: first cause\n")


def test_with_json_the_error_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    ending_with(CheckpointError("damaged", where="run/x", todo="verify", objects=("a", "b")), "--json")
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "version": 1,
        "error": {
            "kind": "CheckpointError",
            "exit_code": 3,
            "what": "damaged",
            "where": "run/x",
            "todo": "verify",
            "objects": ["a", "b"],
        },
    }
    assert captured.err.startswith("error: run/x: damaged")


def test_a_bug_is_said_to_be_ours_and_its_traceback_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending_with(ZeroDivisionError("by zero")) == 1
    (crash,) = (home / "crashes").iterdir()
    text = crash.read_text(encoding="utf-8")
    assert text.startswith("stormsail fail\nPython ")
    assert "ZeroDivisionError: by zero" in text
    message = capsys.readouterr().err
    assert (
        message
        == f"error: this is a bug of ours: ZeroDivisionError: by zero\nplease report it with the traceback in {crash}\n"
    )


def test_a_bug_whose_traceback_cannot_be_kept_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.write_text("in the way", encoding="utf-8")
    assert ending_with(ZeroDivisionError("by zero")) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()], ids=["ctrl-c", "abort"])
def test_ctrl_c_is_no_error(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending_with(error) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_wrong_command_line_ends_with_2_and_the_nearest_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending_with(InternalError("never run"), "--jsn") == 2
    message = capsys.readouterr().err
    assert "Usage: stormsail fail" in message
    assert "--json" in message


def test_a_wrong_command_line_is_json_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending_with(InternalError("never run"), "--json", "--what") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["exit_code"]) == ("UsageError", 2)
    assert "--what" in error["what"]


def test_flags_behind_two_dashes_belong_to_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    def echo(words: list[str]) -> None:
        raise ConfigError(" ".join(words))

    def register(app: typer.Typer) -> None:
        app.command("echo")(echo)
        app.command("other")(lambda: None)

    assert run(["echo", "--", "--debug", "--json"], registers=[register]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: --debug --json\n"
    assert captured.out == ""


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], registers=[lambda app: app.command("x")(lambda: None)]) == 0  # type: ignore[list-item]  # its result is not read
    assert capsys.readouterr().out.startswith("stormsail ")


@pytest.mark.parametrize("value", ["stormsail.platform.nowhere:register", "stormsail.platform.errors:nothing"])
def test_commands_that_cannot_be_loaded_are_never_left_out_in_silence(value: str) -> None:
    with pytest.raises(InternalError, match="cannot be loaded") as caught:
        load_registers([EntryPoint("broken", value, GROUP)])
    assert caught.value.where == value


def test_entry_points_are_loaded_in_the_order_of_their_names() -> None:
    points = [
        EntryPoint("b", "stormsail.platform.commands:register", GROUP),
        EntryPoint("a", "stormsail.platform.errors:StormsailError", GROUP),
    ]
    first, second = load_registers(points)
    assert first.__name__ == "StormsailError"
    assert second.__module__ == "stormsail.platform.commands"


def test_a_reader_that_leaves_ends_the_command_quietly(home: Path) -> None:
    code = (
        "import sys, typer\n"
        "from stormsail.platform.cli import run\n"
        "from stormsail.platform.console import emit\n"
        "def talk() -> None:\n"
        "    for _ in range(100000): emit('line')\n"
        "def register(app):\n"
        "    app.command('talk')(talk)\n"
        "    app.command('other')(lambda: None)\n"
        "sys.exit(run(['talk'], registers=[register]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert errors == ""
