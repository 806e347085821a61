"""Reading a sweep and its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.config.problems import ConfigProblems
from stormsail.platform.errors import ConfigError
from stormsail.tuning.loading import load_sweep

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["sweep.yaml", "sweep-small.yaml"])
def test_the_examples_are_valid(name: str) -> None:
    request = load_sweep(EXAMPLES / name, environ={})
    assert request.target.name == "quickstart"
    assert request.sweep.proxies


def test_the_environment_is_laid_over_the_target() -> None:
    request = load_sweep(EXAMPLES / "sweep-small.yaml", environ={"STORMSAIL__SEED": "7"})
    assert request.target.seed == 7


def test_every_problem_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("name: x\ntarget: y\nproxies:\n  - {name: a, steps: 0, tall: 3}\nseeds: [one]\n", encoding="utf-8")
    with pytest.raises(ConfigProblems) as caught:
        load_sweep(file, environ={})
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [
        (4, "proxies.0.steps"),
        (4, "proxies.0.tall"),
        (5, "seeds.0"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\ntarget: none.yaml\nproxies: [{name: a, steps: 5}]\n", "there is no file"),
        ("- a\n", "mapping"),
        ("a: [\n", "syntax error"),
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        load_sweep(tmp_path / "sweep.yaml", environ={})


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_sweep(tmp_path / "sweep.yaml", environ={})
