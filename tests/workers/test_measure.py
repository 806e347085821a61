"""A rank's vitals, read from its engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from stormsail.workers.measure import count_nonfinite_state, measure, software
from stormsail.workers.vitals import RankVitals


@dataclass
class Gradients:
    """What an engine shows of its gradients and its state."""

    gradients: list[torch.Tensor]
    state: list[torch.Tensor] = field(default_factory=list)

    def local_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((f"p{index}", gradient) for index, gradient in enumerate(self.gradients))

    def live_buffers(self) -> Iterator[tuple[Any, str, torch.Tensor]]:
        yield from ((None, "master", live) for live in self.state)


def vitals(engine: Gradients, loss_sum: float = 10.0) -> RankVitals:
    return measure(
        engine,  # type: ignore[arg-type] # the two methods that are used
        step=7,
        loss_sum=loss_sum,
        tokens=4,
        compute_s=0.5,
        data_s=0.1,
        stop=True,
        batch=99,
    )


def test_the_square_norm_is_summed_over_all_parameters_in_float64() -> None:
    engine = Gradients([torch.tensor([3.0, 4.0]), torch.tensor([1e-20]), torch.zeros(0)])
    assert vitals(engine).square_norm == pytest.approx(25.0, rel=1e-15)


def test_squares_beyond_float32_do_not_overflow() -> None:
    assert vitals(Gradients([torch.full((4,), 1e30)])).square_norm == pytest.approx(4e60)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_elements_that_are_not_finite_are_counted_and_the_first_parameter_is_named(value: float) -> None:
    engine = Gradients([torch.ones(2), torch.tensor([1.0, value]), torch.tensor([value, value])], [torch.ones(3)])
    found = vitals(engine)
    assert (found.nonfinite_gradients, found.first_parameter, found.nonfinite_state) == (3, 1, 0)


def test_a_loss_that_is_not_finite_counts_as_one_more() -> None:
    found = vitals(Gradients([torch.ones(2)]), loss_sum=math.nan)
    assert (found.nonfinite_gradients, found.first_parameter) == (1, -1)


def test_weights_are_looked_at_only_after_bad_gradients() -> None:
    poisoned = torch.tensor([math.nan, 1.0])
    assert vitals(Gradients([torch.ones(2)], [poisoned])).nonfinite_state == 0
    assert vitals(Gradients([torch.tensor([math.inf])], [poisoned, poisoned])).nonfinite_state == 2


def test_a_whole_state_counts_as_finite() -> None:
    assert count_nonfinite_state(Gradients([], [torch.ones(3)])) == 0  # type: ignore[arg-type] # as above


def test_the_rest_is_passed_on() -> None:
    found = vitals(Gradients([]))
    assert (found.step, found.tokens, found.stop, found.batch, found.compute_s, found.data_s) == (7, 4, 1, 99, 0.5, 0.1)


@pytest.mark.filterwarnings("ignore")  # DeepSpeed's own imports
def test_the_software_is_named_by_what_makes_bits_repeat() -> None:
    found = software()
    assert found.keys() == {"torch", "deepspeed", "python", "processor", "machine"}
    assert found["torch"] == str(torch.__version__)
    assert all(found.values())
