"""The built-in optimizer: AdamW with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from stormsail.platform.config.builtin_args import AdamWArgs
from stormsail.platform.config.model import OptimizerSection

_MATRIX_DIMS = 2


def build_adamw(section: OptimizerSection, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.AdamW:
    """`builtin:adamw`: two parameter groups, matrices with weight decay and the rest without.

    The plain implementation is named explicitly: torch's own choice depends on the device, and with it the bits.
    """
    AdamWArgs.model_validate(section.args)
    trained = [parameter for _, parameter in named_parameters if parameter.requires_grad]
    matrices = [parameter for parameter in trained if _is_matrix(parameter)]
    others = [parameter for parameter in trained if not _is_matrix(parameter)]
    groups = [
        {"params": matrices, "weight_decay": section.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=section.lr,
        betas=section.betas,
        eps=section.eps,
        foreach=False,
        fused=False,
    )


def _is_matrix(parameter: nn.Parameter) -> bool:
    """Judged by the whole parameter's shape: a partitioned one is flat, and DeepSpeed keeps its shape beside it."""
    shape = getattr(parameter, "ds_shape", parameter.shape)
    return len(shape) >= _MATRIX_DIMS
