"""Modes and buffers of a module are put back, and those that belong to its state are told apart when they change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stormsail.workers.buffers import as_it_was, buffer_sums


class _Wilful(nn.Module):
    """Counts its passes in one buffer, replaces another, and keeps one part out of training mode on purpose."""

    passes: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm1d(2).eval()
        self.learning = nn.BatchNorm1d(2)
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.passes += 1.0
        self.last = values.mean(0)
        learnt: torch.Tensor = self.learning(self.frozen(values))
        return learnt


def test_a_look_leaves_modes_and_buffers_of_a_model_as_they_were() -> None:
    model = _Wilful()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    held = dict(model.named_buffers())
    with as_it_was(model):
        model.eval()
        model(torch.ones(3, 2))
        model.train()
        model(torch.ones(3, 2))
    assert (model.training, model.learning.training, model.frozen.training) == (True, True, False)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert all(buffer is held[name] for name, buffer in model.named_buffers())


def statistics() -> nn.Sequential:
    """Keeps running statistics, and has a part in evaluation mode."""
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    module[1].eval()
    return module


def test_modes_and_buffers_are_put_back_whatever_happens_inside() -> None:
    module = statistics()
    before, mean = buffer_sums(module), module[0].running_mean

    def inside() -> None:
        with as_it_was(module):
            module.train()
            module(torch.ones(3, 4))
            assert buffer_sums(module) != before
            raise RuntimeError("the model's own")

    with pytest.raises(RuntimeError, match="the model's own"):
        inside()
    assert buffer_sums(module) == before
    assert [part.training for part in module] == [True, False]
    assert module[0].running_mean is mean


def test_only_what_belongs_to_the_state_counts() -> None:
    module = statistics()
    module.register_buffer("scratch", torch.zeros(2), persistent=False)
    before = buffer_sums(module)
    module.get_buffer("scratch").add_(1)
    assert buffer_sums(module) == before
    module(torch.ones(3, 4))
    now = buffer_sums(module)
    assert {name for name in before if now[name] != before[name]} == {
        "0.running_mean",
        "0.running_var",
        "0.num_batches_tracked",
    }
