"""A quadratic bowl under gradient descent: stable below learning rate 1, for sweeps; samples can be slow, or kill once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Bowl(nn.Module):
    """Loss w^2 for each token; its only curvature is 2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, tokens: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        return (self.weight**2).expand_as(mask) * mask


class Samples:
    """Ones, at a pace; with a trap set, the first process to read 31 of them ends."""

    digest = "ones"

    def __init__(self, length: int, args: dict[str, Any]) -> None:
        self.length, self.pace_s = length, float(args.get("pace_s", 0.0))
        self.trap = Path(args["trap"]) if "trap" in args else None
        self.read = 0

    def samples(self) -> int:
        return 64

    def sample(self, index: int, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        time.sleep(self.pace_s)
        self.read += 1
        if self.trap is not None and self.read > 30 and self.trap.exists():
            self.trap.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        tokens = np.full(self.length, index % 8, dtype=np.int64)
        return tokens, tokens, np.ones(self.length, dtype=np.float32)


def model(section: Any) -> nn.Module:
    return Bowl()


def data(section: Any) -> Samples:
    return Samples(section.sequence_tokens, section.args)


def descent(section: Any, named_parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named_parameters], lr=section.lr)
