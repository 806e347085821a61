"""pydantic's errors become plain words with places."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.builtin_args import TransformerArgs
from stormsail.platform.config.explain import explain, place_of
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.problems import Keys, Place, Problem

FILE = Place("f")


def problems_of(values: dict[str, object]) -> dict[str, Problem]:
    base: dict[str, object] = {"name": "x", "train": {"steps": 100}}
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({**base, **values})
    found = explain(caught.value, RunConfig, places={}, default=FILE)
    return {problem.key: problem for problem in found}


def test_a_place_is_that_of_the_key_or_of_the_nearest_parent() -> None:
    places = {(): Place("f", 1), ("a",): Place("f", 2), ("a", "b", 0): Place("f", 3)}
    assert place_of(("a", "b", 0), places, FILE).line == 3
    assert place_of(("a", "b", 1), places, FILE).line == 2
    assert place_of(("x",), places, FILE).line == 1
    assert place_of(("x",), {}, FILE) is FILE


@pytest.mark.parametrize(
    ("values", "key", "found", "hint"),
    [
        ({"seed": True}, "seed", "true", ""),
        ({"seed": "1"}, "seed", "the text `1`", "remove the quotes: this is text"),
        ({"name": "My Run"}, "name", "the text `My Run`", "`my-run` would do"),
        ({"name": "///"}, "name", "the text `///`", ""),
        ({"name": 1}, "name", "the number 1", "put it in quotes if it is meant as text"),
        ({"train": {"steps": 1, "precision": "bf61"}}, "train.precision", "the text `bf61`", "did you mean `bf16`?"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas", "a shorter list", ""),
        ({"optimizer": {"betas": [0.9, 0.9, 0.9]}}, "optimizer.betas", "a list of 3", ""),
        ({"optimizer": {"betas": [0.9, 2]}}, "optimizer.betas.1", "the number 2", ""),
        ({"drill": {"faults": [{"kind": "kil"}]}}, "drill.faults.0.kind", "the text `kil`", "did you mean `kill`?"),
        ({"drill": {"faults": [{}]}}, "drill.faults.0.kind", "nothing: the key is missing", ""),
        ({"drill": {"faults": [{"kind": "kill"}]}}, "drill.faults.0.step", "nothing: the key is missing", ""),
        ({"drill": {"faults": [3]}}, "drill.faults.0", "the number 3", ""),
        ({"lr": 5}, "lr", "the number 5", ""),
        (
            {"cluster": {"shared_path": 5}},
            "cluster.shared_path",
            "the number 5",
            "put it in quotes if it is meant as text",
        ),
    ],
)
def test_errors_in_plain_words(values: dict[str, object], key: str, found: str, hint: str) -> None:
    problem = problems_of(values)[key]
    assert (problem.found, problem.hint) == (found, hint)
    assert problem.expected
    assert "Input should" not in str(problem)


def test_an_unknown_key_does_not_show_its_value() -> None:
    problem = problems_of({"storage": {"secret_key": "hunter2"}})["storage.secret_key"]
    assert "hunter2" not in str(problem)
    assert problem.found == "the unknown key `secret_key`"


def test_args_are_explained_below_their_section() -> None:
    with pytest.raises(ValidationError) as caught:
        TransformerArgs.model_validate({"heads": 3, "d_model": 64})
    places: dict[Keys, Place] = {("model", "args", "heads"): Place("f", 9)}
    (problem,) = explain(caught.value, TransformerArgs, at=("model", "args"), places=places, default=FILE)
    assert (problem.line, problem.key) == (9, "model.args.heads")
