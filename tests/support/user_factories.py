"""Factories as a user would write them, named in test configurations as `tests.support.user_factories:NAME`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from stormsail.platform.config.training import ModelSection, OptimizerSection


def two_rates(section: OptimizerSection, named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """AdamW whose second half of the parameters learns ten times slower."""
    parameters = [parameter for _, parameter in named]
    half = len(parameters) // 2
    return torch.optim.AdamW(
        [
            {"params": parameters[:half], "lr": section.lr},
            {"params": parameters[half:], "lr": section.lr / 10},
        ],
        lr=section.lr,
        foreach=False,
        fused=False,
    )


class Numbers:
    """Samples that can be told by heart: sample i counts up from i."""

    digest = "numbers"

    def __init__(self, samples: int = 4096, sequence_tokens: int = 8, *, vocab: int = 32) -> None:
        self._samples, self._tokens, self._vocab = samples, sequence_tokens, vocab

    def samples(self) -> int:
        return self._samples

    def sample(self, index: int, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        line = (index + np.arange(self._tokens + 1, dtype=np.int64)) % self._vocab
        return line[:-1], line[1:], np.ones(self._tokens, dtype=np.float32)


class Quantised(torch.optim.SGD):
    """Keeps what an 8-bit optimizer keeps: codes, a table of 256 values, and a scale for each block."""

    def step(self, closure: None = None) -> None:  # type: ignore[override] # as DeepSpeed calls it
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                blocks = -(-parameter.numel() // 256)
                self.state[parameter].update(
                    state1=torch.zeros(parameter.numel(), dtype=torch.uint8),
                    qmap1=torch.linspace(-1, 1, 256),
                    absmax1=torch.ones(blocks),
                )


def quantised(section: OptimizerSection, named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """An optimizer whose state is block-wise quantised."""
    return Quantised([parameter for _, parameter in named], lr=section.lr)


class Silent(nn.Module):
    """A model that tells nothing but its losses."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, vocab)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.table(tokens).float()
        losses = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view_as(mask) * mask


class Counting(Silent):
    """It keeps statistics of what it was trained on, besides a constant and what it never keeps."""

    seen: torch.Tensor
    scratch: torch.Tensor

    def __init__(self, vocab: int) -> None:
        super().__init__(vocab)
        self.register_buffer("constant", torch.ones(2, 2, dtype=torch.bool))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.scratch += 1
        if self.training:
            self.seen += 1
        return super().forward(tokens, targets, mask)


def counting_model(section: ModelSection) -> nn.Module:
    return Counting(int(section.args["vocab_size"]))


def silent_model(section: ModelSection) -> nn.Module:
    return Silent(int(section.args["vocab_size"]))
