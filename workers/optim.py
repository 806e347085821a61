"""The built-in optimizer: AdamW with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from stormsail.platform.config.builtin_args import AdamWArgs
from stormsail.platform.config.training import OptimizerSection

_MATRIX_DIMS = 2
_HIDDEN = "blocks."


def build_adamw(section: OptimizerSection, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.AdamW:
    """`builtin:adamw`: two parameter groups, matrices with weight decay and the rest without.

    With `hidden_lr_scale` the blocks' matrices form a group of their own, whose decay per step stays the same.

    The plain implementation is named explicitly: torch's own choice depends on the device, and with it the bits.
    """
    scale = AdamWArgs.model_validate(section.args).hidden_lr_scale
    trained = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    # At scale 1 there is no group of hidden matrices: two groups are faster than three, and keep their bits.
    hidden = [p for name, p in trained if scale != 1.0 and name.startswith(_HIDDEN) and _is_matrix(p)]
    known = {id(parameter) for parameter in hidden}
    matrices = [parameter for _, parameter in trained if _is_matrix(parameter) and id(parameter) not in known]
    others = [parameter for _, parameter in trained if not _is_matrix(parameter)]
    groups = [
        {"params": hidden, "lr": section.lr * scale, "weight_decay": section.weight_decay / scale},
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
