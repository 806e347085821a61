"""Whether an optimizer's state can be kept parameter by parameter, and so be read by any number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def problem(states: Sequence[Mapping[str, object]], sizes: Sequence[int]) -> str:
    """Why not, in words; "" if it can.

    Each entry must be a number, or an fp32 tensor with one value for each element of the flat group. Block-wise
    quantised state (8-bit optimizers) has lookup tables and scales that are not shaped like parameters: cut like
    parameters they are lost (deepspeedai/DeepSpeed#1582).

    Args:
        states: The optimizer's state of each flat group.
        sizes: Elements of each flat group.
    """
    for state, size in zip(states, sizes, strict=True):
        for name, value in state.items():
            found = _problem_of(value, size)
            if found:
                return f"{name!r} {found}"
    return ""


def _problem_of(value: object, size: int) -> str:
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        if value.numel() != size:
            return f"has {value.numel()} values for {size} elements"
        return "" if value.dtype is torch.float32 else f"is {str(value.dtype).removeprefix('torch.')}, not float32"
    is_number = isinstance(value, torch.Tensor | int | float)
    return "" if is_number else f"is a {type(value).__name__}, neither a number nor a tensor"
