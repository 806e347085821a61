"""State that is shaped like parameters can be kept; state that is not is told apart before the first checkpoint."""

from __future__ import annotations

import pytest
import torch

from stormsail.workers.optimizer_states import problem

FULL = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(600), "exp_avg_sq": torch.zeros(600)}


def test_moments_and_numbers_can_be_kept() -> None:
    assert problem([FULL, {"step": 3, "momentum_buffer": torch.zeros(5), "k": 0.5}], [600, 5]) == ""
    assert problem([{}], [7]) == ""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"state1": torch.zeros(600, dtype=torch.uint8)}, "'state1' is uint8, not float32"),
        ({"qmap1": torch.zeros(256)}, "'qmap1' has 256 values for 600 elements"),
        ({"absmax1": torch.zeros(3)}, "'absmax1' has 3 values for 600 elements"),
        ({"exp_avg": torch.zeros(600, dtype=torch.bfloat16)}, "'exp_avg' is bfloat16, not float32"),
        ({"blocks": [1, 2]}, "'blocks' is a list, neither a number nor a tensor"),
    ],
)
def test_state_that_cannot_be_cut_like_parameters_is_named(more: dict[str, object], words: str) -> None:
    """Case 13: block-wise quantised state and its tables."""
    assert problem([FULL | more], [600]) == words
