"""What ranks must agree on before they update."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.one_rank import tiny_config

from stormsail.platform.messages import Directive, LrEvent
from stormsail.workers.plan import Plan, differences, digest_of, disagreeing, plan_word, standing_plan

DIRECTIVE = Directive(3, lr_events=(LrEvent(5, 0.8, 2),), skip=((4, 8),))


def plan(directive: Directive = DIRECTIVE, **changes: int | str) -> Plan:
    values = {"precision": "bf16", "world_size": 2, "samples": 100} | changes
    return standing_plan(tiny_config(), directive, **values)  # type: ignore[arg-type] # by name


def test_the_same_plan_gives_the_same_word() -> None:
    assert plan_word(digest_of(plan()), 7, [1e-3, 2e-3]) == plan_word(digest_of(plan()), 7, [1e-3, 2e-3])


@pytest.mark.parametrize(
    "other",
    [
        plan(dataclasses.replace(DIRECTIVE, generation=4)),
        plan(dataclasses.replace(DIRECTIVE, skip=())),
        plan(dataclasses.replace(DIRECTIVE, lr_events=())),
        plan(precision="fp32"),
        plan(world_size=4),
        plan(samples=101),
    ],
    ids=["generation", "skip list", "events", "precision", "world size", "data"],
)
def test_another_plan_gives_another_word(other: Plan) -> None:
    assert plan_word(digest_of(plan()), 7, [1e-3]) != plan_word(digest_of(other), 7, [1e-3])


def test_so_does_another_step_and_the_last_bit_of_a_rate() -> None:
    standing = digest_of(plan())
    words = {plan_word(standing, 7, [1e-3]), plan_word(standing, 8, [1e-3]), plan_word(standing, 7, [1e-3 + 2e-19])}
    assert len(words) == 3
    assert all(-(2**63) <= word < 2**63 for word in words)


@pytest.mark.parametrize(
    ("words", "apart"),
    [
        ([5], ()),
        ([5, 5], ()),
        ([5, 6], (0, 1)),
        ([5, 5, 6], (2,)),
        ([6, 5, 5, 5], (0,)),
        ([5, 5, 6, 6], (0, 1, 2, 3)),
        ([1, 2, 3], (0, 1, 2)),
    ],
)
def test_the_minority_is_named_and_without_a_majority_everybody(words: list[int], apart: tuple[int, ...]) -> None:
    assert disagreeing(words) == apart


def test_what_differs_is_named_with_each_ranks_value() -> None:
    found = differences([plan(), plan(), plan(precision="fp32")])
    assert found == {"precision": ['"bf16"', '"bf16"', '"fp32"']}
