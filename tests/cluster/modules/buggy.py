"""A model with a bug in its forward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stormsail.platform.config.training import ModelSection


class Buggy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 8)

    def forward(self, tokens: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        rows: Tensor = self.table(tokens)
        return rows @ torch.ones(9)  # eight wide, not nine


def build(section: ModelSection) -> nn.Module:
    return Buggy()
