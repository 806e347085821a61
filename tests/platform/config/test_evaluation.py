"""When a run is evaluated, and what of that cannot all be meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stormsail.platform.config.evaluation import EvalSection, holds_nothing_out
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.training import DataSection


def run(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"name": "x", "train": {"steps": 100}, **sections})


TOKENS = {"factory": "builtin:tokens", "args": {"path": "/data"}}
KEEP = {"keep_best": True}


@given(st.none() | st.integers(1, 30), st.integers(0, 100), st.integers(1, 100))
def test_as_many_are_counted_as_are_due(every: int | None, after: int, last: int) -> None:
    section = EvalSection(every_steps=every)
    assert section.count(after, last=last) == sum(
        section.is_due(step, last=last) for step in range(after + 1, last + 1)
    )


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"eval": {"every_steps": 25}, "data": TOKENS}, r"eval\.every_steps \(25\) has nothing to evaluate on"),
        ({"eval": {"every_steps": 25}, "data": {"args": {"holdout": 0.0}}}, "data.args.holdout is 0"),
        ({"checkpoint": KEEP}, r"checkpoint\.keep_best: .* never evaluated: set eval\.every_steps"),
        (
            {"checkpoint": KEEP, "eval": {"every_steps": 25}},
            r"eval\.every_steps \(25\) must be a multiple of checkpoint\.every_steps \(10\)",
        ),
        (
            {"eval": {"every_steps": 25, "timeout_s": 2000}},
            r"cluster\.collective_timeout_s \(900\) must be at least 2020: eval\.timeout_s and hang\.evidence_s",
        ),
    ],
)
def test_what_cannot_all_be_meant_names_its_key(sections: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told) as caught:
        run(**sections)
    assert len(str(caught.value.errors()[0]["ctx"]["error"]).splitlines()) == 1


@pytest.mark.parametrize(
    "sections",
    [
        {"eval": {"timeout_s": 2000}},
        {"eval": {"every_steps": 25}},
        {"eval": {"every_steps": 25}, "data": {**TOKENS, "args": {"path": "/data", "holdout": 0.1}}},
        {"eval": {"every_steps": 25}, "data": {"factory": "mine:data"}},
        {"eval": {"every_steps": 50}, "checkpoint": KEEP},
    ],
)
def test_what_can_be_meant_is_taken(sections: dict[str, object]) -> None:
    assert run(**sections).eval.samples == 256


def test_a_run_can_be_had_without_its_evaluations() -> None:
    evaluated = run(eval={"every_steps": 50}, checkpoint={**KEEP, "keep_last": 7})
    assert evaluated.unevaluated() == run(checkpoint={"keep_last": 7})


def test_args_that_are_wrong_are_told_by_whoever_checks_them() -> None:
    assert not holds_nothing_out(DataSection(factory="builtin:tokens", args={"path": "not absolute"}))


@given(st.integers(1, 50), st.integers(0, 200), st.integers(1, 200))
def test_every_so_many_steps_and_the_last_one_are_evaluated(every: int, step: int, last: int) -> None:
    due = EvalSection(every_steps=every).is_due(step, last=last)
    assert due == (step in {*range(every, 201, every), last})
    assert not EvalSection().is_due(step, last=last)
