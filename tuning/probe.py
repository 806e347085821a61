"""The largest attention logit of the built-in model, read without changing it: growing logits announce slow divergence."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stormsail.workers.model import Attention, _rotate


def max_attention_logit(model: nn.Module, tokens: Tensor) -> float | None:
    """Run the model once and return the largest absolute attention logit over all layers, before the mask.

    Args:
        model: Any; only the built-in attention is looked into.
        tokens: int64 [B, T].

    Returns:
        None for a model without the built-in attention.
    """
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if not layers:
        return None
    seen: list[float] = []

    def look(layer: nn.Module, inputs: tuple[Tensor, tuple[Tensor, Tensor]]) -> None:
        assert isinstance(layer, Attention)  # noqa: S101 - for the type checker; only such layers are hooked
        seen.append(_largest(layer, *inputs))

    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        with torch.no_grad():
            model.logits(tokens)  # type: ignore[operator]  # the built-in model has it, and only there are such layers
    finally:
        for handle in handles:
            handle.remove()
    return max(seen)


def _largest(layer: Attention, x: Tensor, rotation: tuple[Tensor, Tensor]) -> float:
    parts = layer.qkv(x).unflatten(-1, (3 * layer.heads, -1)).chunk(3, dim=2)
    q, k = (part.transpose(1, 2) for part in parts[:2])
    q, k = _rotate(layer.q_norm(q), rotation), _rotate(layer.k_norm(k), rotation)
    return float((q @ k.transpose(-1, -2)).abs().max()) / math.sqrt(q.shape[-1])
