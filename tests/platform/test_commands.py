"""`validate`, `schema`, `init` and `plan` do their work on any machine, with a file and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stormsail.platform.certificate_file import certificate_path
from stormsail.platform.cli import run
from stormsail.platform.commands import register

GOOD = "name: run-1\ntrain: {steps: 200}\n"

LIGHT = """
import sys
from stormsail.platform.cli import run
from stormsail.platform.commands import register
code = run(sys.argv[1:], registers=[register])
heavy = sorted({"torch", "ray", "deepspeed", "mlflow", "boto3", "numpy", "pandas", "socket._"} & sys.modules.keys())
sys.exit(f"imported {heavy}" if heavy else code)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(GOOD, encoding="utf-8")
    return path


def stormsail(*arguments: object) -> int:
    return run([str(argument) for argument in arguments], registers=[register])


def test_validate_says_what_the_run_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("validate", file) == 0
    assert capsys.readouterr().out == (
        f"{file}: valid\n  run run-1: 200 steps of 16 x 128 tokens on 2 workers, bf16, storage embedded\n"
    )


def test_validate_gives_the_whole_configuration_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("validate", file, "--json", "--set", "train.steps=300", "--set", "seed=7") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["version"], answer["valid"]) == (1, True)
    assert answer["config"]["train"]["steps"] == 300
    assert answer["config"]["seed"] == 7
    assert len(answer["digest"]) == 64


def test_validate_reads_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORMSAIL__TRAIN__STEPS", "77")
    assert stormsail("validate", file) == 0
    assert "77 steps" in capsys.readouterr().out


def test_validate_tells_all_problems_and_ends_with_2(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("name: X\ntrain: {steps: 0}\nfoo: 1\n", encoding="utf-8")
    assert stormsail("validate", file) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"error: {file}: 3 problems in the configuration"
    assert [line.split(":")[1] for line in lines[1:]] == ["1", "2", "3"]


def test_validate_gives_problems_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("name: x\ntrain:\n  steps: 0\n", encoding="utf-8")
    assert stormsail("validate", file, "--json") == 2
    (problem,) = json.loads(capsys.readouterr().out)["error"]["problems"]
    assert problem == {
        "source": str(file),
        "line": 3,
        "key": "train.steps",
        "expected": "a whole number of at least 1 (global batches to consume)",
        "found": "the number 0",
        "hint": "",
    }


def test_a_missing_file_is_one_line_and_a_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("validate", tmp_path / "no.yaml") == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_schema_is_json_schema(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("schema", *flags) == 0
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")


def test_init_writes_what_validate_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "My First Run.yaml"
    assert stormsail("init", path) == 0
    assert stormsail("validate", path) == 0
    assert "run my-first-run: 200 steps" in capsys.readouterr().out


def test_init_never_overwrites(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("init", file) == 2
    assert file.read_text(encoding="utf-8") == GOOD
    assert "the file exists" in capsys.readouterr().err


def test_init_into_a_missing_folder_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("init", tmp_path / "no" / "run.yaml", "--json") == 2
    assert "cannot be written" in json.loads(capsys.readouterr().out)["error"]["what"]


def test_init_says_as_json_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("init", tmp_path / "...yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "file": str(tmp_path / "...yaml"), "name": "run"}


def test_plan_is_a_page(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("plan", file) == 0
    assert "memory per rank" in capsys.readouterr().out


def test_plan_is_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("plan", file, "--json", "--bandwidth-mb-s", "10", "--set", "cluster.workers=4") == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["batch"]["padded_samples"] == 16
    assert plan["checkpoint"]["upload_s"] == pytest.approx(plan["checkpoint"]["stored_bytes"] / 10e6)
    assert plan["unchecked"]


def test_plan_goes_on_beside_a_damaged_certificate_and_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate_path(file).write_text("{", encoding="utf-8")
    assert stormsail("plan", file, "--json") == 0
    notes = json.loads(capsys.readouterr().out)["plan"]["notes"]
    assert any("certificate" in note and "it is damaged" in note for note in notes)


def test_plan_takes_the_size_of_an_own_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stormsail("plan", file, "--json", "--set", "model.factory=m:f", "--params", "7e9") == 0
    assert json.loads(capsys.readouterr().out)["plan"]["parameters"] == 7_000_000_000


@pytest.mark.parametrize("flag", ["--bandwidth-mb-s", "--params"])
@pytest.mark.parametrize("value", ["inf", "nan", "0", "-1", "x"])
def test_plan_refuses_figures_that_are_none(file: Path, flag: str, value: str) -> None:
    assert stormsail("plan", file, flag, value) == 2


@pytest.mark.parametrize("command", ["validate", "plan", "schema", "--help", "validate --help"])
def test_case_61_a_laptop_is_enough(file: Path, tmp_path: Path, command: str) -> None:
    """Case 61: no GPU, Ray, network or torch is needed to check a configuration."""
    words = command.split()
    arguments = [*words, str(file)] if words[-1] in ("validate", "plan") else words
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIGHT, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
