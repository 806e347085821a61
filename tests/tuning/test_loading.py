"""Reading a sweep and its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.config.problems import ConfigProblems
from stormsail.platform.errors import ConfigError
from stormsail.tuning.answer import build_answer
from stormsail.tuning.loading import load_sweep
from stormsail.tuning.proxy import trial_config
from stormsail.tuning.space import control_trials

EXAMPLES = Path(__file__).parents[2] / "examples"


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


@pytest.mark.parametrize(("name", "trials"), [("sweep-small", 324), ("sweep", 3024 + 9)])
def test_the_examples_ask_the_whole_question_in_as_many_trials_as_they_say(name: str, trials: int) -> None:
    request = load_sweep(EXAMPLES / f"{name}.yaml", environ={})
    assert request.target.name == "quickstart"
    space = request.sweep.space
    assert 2 <= len(request.sweep.proxies) <= 4
    assert space.beta2 == (0.9, 0.95, 0.98, 0.999)
    assert space.clip == (0.5, 1.0, 2.0, "off")
    assert space.warmup == (0.0, 0.01, 0.05)
    assert build_answer(request.sweep, request.target, [], {}).total == trials
    for trial in control_trials(request.sweep):
        trial_config(request.target, request.sweep, trial)
