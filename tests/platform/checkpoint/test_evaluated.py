"""Losses compare only over the same held-out samples."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.evaluated import Evaluated, best_of, evaluated_in, lowest, lowest_so_far
from stormsail.platform.messages import CheckpointRef


def over(eval_set: str, *losses: float, first: int = 1) -> list[Evaluated]:
    return [Evaluated(1, 10 * place, loss, eval_set) for place, loss in enumerate(losses, start=first)]


def test_of_equal_ones_the_older_is_the_lowest() -> None:
    assert lowest(over("a", 3.0, 2.0, 2.0, 2.5)) == Evaluated(1, 20, 2.0, "a")
    assert lowest([]) is None


def test_what_is_lower_over_other_samples_is_no_measure() -> None:
    known = [*over("a", 3.0, 1.0), *over("b", 2.5, 2.0, 2.2, first=3)]
    assert lowest(known) == Evaluated(1, 40, 2.0, "b")
    assert [best.step for _, best in lowest_so_far(known)] == [10, 20, 30, 40, 40]
    assert lowest([*known, *over("a", 1.5, first=6)]) == Evaluated(1, 20, 1.0, "a")


def test_only_those_that_are_asked_for_are_compared() -> None:
    known = [*over("a", 3.0, 1.0), *over("b", 2.5, first=3)]
    assert best_of(known, [CheckpointRef(1, 10), CheckpointRef(1, 20)]) == CheckpointRef(1, 20)
    assert best_of(known, [CheckpointRef(1, 40)]) is None


def test_a_loss_that_is_not_finite_is_never_the_lowest() -> None:
    assert lowest(over("a", math.nan, -math.inf, math.inf, 9.0)) == Evaluated(1, 40, 9.0, "a")
    assert lowest(over("a", math.nan)) is None
    assert evaluated_in({"loss": None, "generation": 1, "eval_set": "a"}, 10) is None


@given(st.permutations(range(1, 9)), st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1.0, 2.0, math.nan]))))
def test_the_order_in_which_they_are_told_is_no_matter(order: list[int], values: list[tuple[str, float]]) -> None:
    told = [Evaluated(1, step, loss, name) for step, (name, loss) in zip(order, values, strict=False)]
    finite = sorted((item for item in told if math.isfinite(item.loss)), key=lambda item: item.step)
    able = [(item.loss, item.step) for item in finite if item.eval_set == finite[-1].eval_set]
    best = lowest(told)
    assert able == [] if best is None else (best.loss, best.step) == min(able)
