"""A rank's vitals, read from its engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from stormsail.workers.layer_groups import LayerGroups
from stormsail.workers.measure import (
    Sample,
    count_nonfinite_state,
    count_zeros,
    measure,
    software,
    update_squares,
)
from stormsail.workers.vitals import RankVitals, Times

Moments = tuple[torch.Tensor, torch.Tensor, float, float]


@dataclass
class Engine:
    """What an engine shows of its gradients and its state; every parameter is a layer group of its own."""

    gradients: list[torch.Tensor]
    state: list[torch.Tensor] = field(default_factory=list)
    moments: list[Moments] | None = None
    own_finite: bool = True
    loss_scale: float = 1.0
    overflowed: bool = False

    @property
    def groups(self) -> LayerGroups:
        return LayerGroups.of([f"p{index}.weight" for index in range(len(self.gradients))])

    def own_gradients_finite(self) -> bool:
        return self.own_finite

    def local_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((f"p{index}", gradient) for index, gradient in enumerate(self.gradients))

    def live_buffers(self) -> Iterator[tuple[Any, str, torch.Tensor]]:
        yield from ((None, "master", live) for live in self.state)

    def adam_moments(self) -> list[Moments] | None:
        return self.moments


def vitals(engine: Engine, loss_sum: float = 10.0, sample: Sample | None = None) -> RankVitals:
    return measure(
        engine,  # type: ignore[arg-type] # the methods that are used
        step=7,
        loss_sum=loss_sum,
        tokens=4,
        batch=99,
        plan=5,
        stop=True,
        times=Times(compute_s=0.5),
        sample=sample,
    )


def sample_with(squares: tuple[float, ...]) -> Sample:
    return Sample((1.0,), (2.0,), squares, correct=3, zeros=1)


def test_squares_are_summed_by_layer_group() -> None:
    engine = Engine([torch.tensor([3.0, 4.0]), torch.tensor([1e-3]), torch.zeros(0)])
    assert vitals(engine).squares == pytest.approx((25.0, 1e-6, 0.0))


@pytest.mark.parametrize(("value", "square"), [(1e30, 4e60), (1e-22, 4e-44)])
def test_squares_beyond_float32_are_exact_all_the_same(value: float, square: float) -> None:
    assert vitals(Engine([torch.full((4,), value)])).squares[0] == pytest.approx(square, rel=1e-5, abs=0.0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_elements_that_are_not_finite_are_counted_and_the_first_parameter_is_named(value: float) -> None:
    engine = Engine([torch.ones(2), torch.tensor([1.0, value]), torch.tensor([value, value])], [torch.ones(3)])
    found = vitals(engine)
    assert (found.nonfinite_gradients, found.first_parameter, found.nonfinite_state) == (3, 1, 0)


def test_a_loss_that_is_not_finite_counts_as_one_more() -> None:
    found = vitals(Engine([torch.ones(2)]), loss_sum=math.nan)
    assert (found.nonfinite_gradients, found.first_parameter) == (1, -1)


def test_weights_are_looked_at_only_where_something_points_to_them() -> None:
    poisoned = torch.tensor([math.nan, 1.0])
    assert vitals(Engine([torch.ones(2)], [poisoned])).nonfinite_state == 0
    assert vitals(Engine([torch.tensor([math.inf])], [poisoned, poisoned])).nonfinite_state == 2
    assert vitals(Engine([torch.ones(2)], [poisoned]), sample=sample_with((0.5,))).nonfinite_state == 0
    assert vitals(Engine([torch.ones(2)], [poisoned]), sample=sample_with((math.inf,))).nonfinite_state == 1


def test_a_whole_state_counts_as_finite() -> None:
    assert count_nonfinite_state(Engine([], [torch.ones(3)])) == 0  # type: ignore[arg-type] # as above


def test_elements_that_are_zero_are_counted() -> None:
    assert count_zeros(Engine([torch.tensor([0.0, 1.0, 0.0]), torch.zeros(2)])) == 4  # type: ignore[arg-type] # as above


def test_the_last_update_is_measured_before_the_learning_rate() -> None:
    first, second = torch.tensor([0.3, -0.3]), torch.tensor([0.09, 0.09])
    engine = Engine([first, first], moments=[(first, second, 0.0, 1.0), (first, second, 0.0, 2.0)])
    assert update_squares(engine) == pytest.approx((2.0, 8.0))  # type: ignore[arg-type] # as above


def test_a_moment_that_is_not_finite_makes_an_infinite_update() -> None:
    broken = torch.tensor([math.nan, 1.0])
    engine = Engine([broken], moments=[(broken, torch.ones(2), 0.0, 1.0)])
    assert update_squares(engine) == (math.inf,)  # type: ignore[arg-type] # as above


def test_an_infinite_second_moment_does_not_pass_for_a_small_update() -> None:
    engine = Engine([torch.ones(2)], moments=[(torch.ones(2), torch.tensor([1.0, math.inf]), 1e-8, 1.0)])
    assert update_squares(engine) == (math.inf,)  # type: ignore[arg-type] # as above


def test_an_optimizer_without_moments_has_no_such_figure() -> None:
    assert update_squares(Engine([torch.ones(1)])) is None  # type: ignore[arg-type] # as above


def test_the_rest_is_passed_on() -> None:
    found = vitals(Engine([torch.ones(1)]), sample=sample_with((0.5,)))
    assert (found.step, found.tokens, found.stop, found.batch, found.plan) == (7, 4, 1, 99, 5)
    assert found.times.compute_s == 0.5
    assert (found.activations, found.attention, found.correct, found.zeros) == ((1.0,), (2.0,), 3, 1)


def test_what_the_engine_says_of_itself_comes_along() -> None:
    found = vitals(Engine([torch.ones(1)], own_finite=False, loss_scale=0.5, overflowed=True))
    assert (found.own_bad, found.loss_scale, found.overflowed) == (1, 0.5, 1)


@pytest.mark.filterwarnings("ignore")  # DeepSpeed's own imports
def test_the_software_is_named_by_what_makes_bits_repeat() -> None:
    found = software()
    assert found.keys() == {"torch", "deepspeed", "python", "processor", "machine"}
    assert found["torch"] == str(torch.__version__)
    assert all(found.values())
