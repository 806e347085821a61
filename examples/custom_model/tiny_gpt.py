"""A model in the style of Hugging Face, as if it came from elsewhere: it knows nothing of Stormsail.

A configuration class, `from_config`, and `forward(input_ids, labels=None)` returning an object with `.logits`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class TinyGptConfig:
    vocab_size: int = 256
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    max_positions: int = 256


class CausalOutput(dict[str, Tensor]):
    """A dict with attributes, like Hugging Face's outputs: ZeRO finds the tensors in dicts, not in other objects."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]

    @property
    def loss(self) -> Tensor | None:
        return self.get("loss")


class TinyGptLayer(nn.Module):
    def __init__(self, config: TinyGptConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.num_heads = config.num_heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        parts = self.c_attn(self.ln_1(hidden)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.c_proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = hidden + self.mlp(self.ln_2(hidden))
        return out


class TinyGptForCausalLM(nn.Module):
    def __init__(self, config: TinyGptConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_positions, config.hidden_size)
        self.layers = nn.ModuleList(TinyGptLayer(config) for _ in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.apply(self._init_weights)

    @classmethod
    def from_config(cls, config: TinyGptConfig) -> TinyGptForCausalLM:
        return cls(config)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> CausalOutput:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.wte(input_ids) + self.wpe(positions)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.lm_head(self.ln_f(hidden))
        if labels is None:
            return CausalOutput(logits=logits)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalOutput(logits=logits, loss=loss)

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
