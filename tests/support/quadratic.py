"""A task whose stable band of learning rates is known: a quadratic bowl with noise, trained by plain gradient descent.

The loss of a batch is the mean over samples of `sum(c_i (w_i - e_i)^2) / 2` with noise `e` drawn from the sample's
tokens. Gradient descent on it is stable exactly for learning rates below 2 / max(c), whatever the noise.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from stormsail.platform.config.training import DataSection, ModelSection, OptimizerSection

CURVATURES = (0.05, 0.4, 2.0)
EDGE = 2.0 / max(CURVATURES)
NOISE = 0.02


class Bowl(nn.Module):
    """Weights start at 1; the loss of each token of a sample is the sample's."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(len(CURVATURES)))
        self.curvatures = torch.tensor(CURVATURES)

    def forward(self, tokens: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        del targets
        noise = NOISE * (tokens[:, : len(CURVATURES)].float() - 3.5)
        losses = 0.5 * (self.curvatures * (self.weights - noise) ** 2).sum(dim=1, keepdim=True)
        return losses.expand_as(mask) * mask


class Noise:
    """Samples of random tokens, each a function of its number."""

    digest = "noise"

    def __init__(self, length: int) -> None:
        self.length = length

    def samples(self) -> int:
        return 512

    def sample(self, index: int, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens = np.random.default_rng(index).integers(0, 8, self.length)
        return tokens.astype(np.int64), tokens.astype(np.int64), np.ones(self.length, dtype=np.float32)


def model(section: ModelSection) -> nn.Module:
    return Bowl()


def data(section: DataSection) -> Noise:
    return Noise(section.sequence_tokens)


def descent(section: OptimizerSection, named_parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named_parameters], lr=section.lr)
