"""Problems say everything that a person needs to change them, and survive the trip between processes."""

from __future__ import annotations

import pickle

from stormsail.platform.config.problems import ConfigProblems, Place, Problem, dotted

STEPS = Problem.at(Place("run.yaml", 7), ("train", "steps"), "a whole number", "the text `x`", "remove the quotes")
SEED = Problem.at(Place("--set seed=x"), ("seed",), "a whole number", "the text `x`")


def test_a_path_is_written_as_after_set() -> None:
    assert dotted(("drill", "faults", 0, "step")) == "drill.faults.0.step"


def test_a_problem_names_file_line_key_expectation_finding_and_hint() -> None:
    assert str(STEPS) == "run.yaml:7: train.steps: expected a whole number, found the text `x`; remove the quotes"


def test_a_problem_outside_files_has_no_line() -> None:
    assert str(SEED) == "--set seed=x: seed: expected a whole number, found the text `x`"


def test_a_problem_of_the_whole_file_has_no_key() -> None:
    assert str(Problem.at(Place("run.yaml", 2), (), "YAML", "a syntax error")) == (
        "run.yaml:2: expected YAML, found a syntax error"
    )


def test_the_error_lists_all_problems() -> None:
    error = ConfigProblems.of([STEPS, SEED], where="run.yaml", todo="change them")
    assert str(error).splitlines() == [
        "run.yaml: 2 problems in the configuration",
        "change them",
        f"  {STEPS}",
        f"  {SEED}",
    ]
    assert error.exit_code == 2


def test_one_problem_is_counted_as_one() -> None:
    assert ConfigProblems.of([SEED], where="run.yaml").what == "one problem in the configuration"


def test_the_error_survives_pickling() -> None:
    error = ConfigProblems.of([STEPS, SEED], where="run.yaml", todo="change them")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ConfigProblems
    assert again.problems == (STEPS, SEED)
    assert str(again) == str(error)
