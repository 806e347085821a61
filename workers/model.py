"""The built-in model: a decoder-only transformer whose forward returns a loss per token.

Legend of shape suffixes: B samples, T tokens, D width of the residual stream, H heads, K dims of one head,
F hidden width of the MLP, V vocabulary, N = B * T.
"""
# ruff: noqa: N803, N806 - the shape suffixes are in capitals

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from stormsail.platform.config.builtin_args import TransformerArgs
from stormsail.platform.config.training import ModelSection
from stormsail.platform.errors import UserCodeError
from stormsail.workers.probes import Observer

Rotation: TypeAlias = tuple[Tensor, Tensor]

_ROTARY_BASE = 10_000.0
_NORM_EPS = 1e-6
# The memory-efficient kernel adds in an order that depends on timing; these two do not.
_REPEATABLE_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


class Transformer(nn.Module):
    """Pre-norm blocks with rotary positions and causal attention; no biases.

    Args:
        args: Sizes and choices.
        seed: Chooses the initial weights; equal seeds give equal weights, whatever was drawn before.
    """

    def __init__(self, args: TransformerArgs, seed: int) -> None:
        super().__init__()
        self.args = args
        self.observer: Observer | None = None
        self.embed = nn.Embedding(args.vocab_size, args.d_model)
        self.drop = nn.Dropout(args.dropout)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = _norm(args, args.d_model)
        self.head = nn.Linear(args.d_model, args.vocab_size, bias=False)
        if args.tie_embeddings:
            self.head.weight = self.embed.weight
        _initialise(self, args, seed)

    def forward(self, tokens: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """The loss of each token, in nats, times its mask.

        Args:
            tokens: int64 [B, T], each in [0, V).
            targets: int64 [B, T], the token that follows each; -100 where there is none.
            mask: float32 [B, T], 1 or 0; 0 leaves a token out.

        Returns:
            float32 [B, T].
        """
        logits_BTV = self.logits(tokens).float()
        if self.observer is not None:
            self.observer.predictions(logits_BTV, targets, mask)
        losses_N = functional.cross_entropy(logits_BTV.flatten(0, 1), targets.flatten(), reduction="none")
        return losses_N.view_as(mask) * mask

    def logits(self, tokens: Tensor) -> Tensor:
        """Scores of the next token: [B, T] to [B, T, V], in the compute precision."""
        try:
            x_BTD = self.drop(self.embed(tokens))
        except IndexError as error:
            raise UserCodeError(
                f"the data hold token {int(tokens.max())}, but the model knows only {self.args.vocab_size}",
                where="model.args.vocab_size",
                todo="Raise it, or check the data factory.",
            ) from error
        rotation = _rotation(tokens.shape[1], self.args.head_dim, x_BTD)
        for block in self.blocks:
            x_BTD = block(x_BTD, rotation)
        logits_BTV: Tensor = self.head(self.norm(x_BTD))
        # Under mu-parametrisation the output matrix keeps its size at any width, so its product must shrink.
        return logits_BTV if self.args.width_ratio == 1.0 else logits_BTV * self.args.width_ratio


class Block(nn.Module):
    """Attention, then MLP, each normalised before and added to the residual stream."""

    def __init__(self, args: TransformerArgs) -> None:
        super().__init__()
        self.attention_norm = _norm(args, args.d_model)
        self.attention = Attention(args)
        self.mlp_norm = _norm(args, args.d_model)
        self.mlp = Mlp(args)
        self.drop = nn.Dropout(args.dropout)

    def forward(self, x_BTD: Tensor, rotation: Rotation) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        x_BTD = x_BTD + self.drop(self.attention(self.attention_norm(x_BTD), rotation))
        out_BTD: Tensor = x_BTD + self.drop(self.mlp(self.mlp_norm(x_BTD)))
        return out_BTD


class Attention(nn.Module):
    """Causal self-attention with rotary positions and, if asked for, normalised queries and keys."""

    def __init__(self, args: TransformerArgs) -> None:
        super().__init__()
        self.heads = args.heads
        self.observer: Observer | None = None
        self.dropout = args.dropout
        self.qkv = nn.Linear(args.d_model, 3 * args.d_model, bias=False)
        self.out = nn.Linear(args.d_model, args.d_model, bias=False)
        self.q_norm = _norm(args, args.head_dim) if args.qk_norm else nn.Identity()
        self.k_norm = _norm(args, args.head_dim) if args.qk_norm else nn.Identity()

    def forward(self, x_BTD: Tensor, rotation: Rotation) -> Tensor:
        """[B, T, D] to [B, T, D]; a token sees itself and what is before it."""
        qkv_BTHK = self.qkv(x_BTD).unflatten(-1, (3 * self.heads, -1))
        q_BHTK, k_BHTK, v_BHTK = (part.transpose(1, 2) for part in qkv_BTHK.chunk(3, dim=2))
        q_BHTK = _rotate(self.q_norm(q_BHTK), rotation)
        k_BHTK = _rotate(self.k_norm(k_BHTK), rotation)
        if self.observer is not None:
            self.observer.attention(q_BHTK, k_BHTK, q_BHTK.shape[-1] ** -0.5)
        out_BHTK = _attend(q_BHTK, k_BHTK, v_BHTK, self.dropout if self.training else 0.0)
        out_BTD: Tensor = self.out(out_BHTK.transpose(1, 2).flatten(2))
        return out_BTD


class Mlp(nn.Module):
    """Two matrices with a GELU between them."""

    def __init__(self, args: TransformerArgs) -> None:
        super().__init__()
        self.up = nn.Linear(args.d_model, args.hidden, bias=False)
        self.down = nn.Linear(args.hidden, args.d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        hidden_BTF = functional.gelu(self.up(x_BTD))
        out_BTD: Tensor = self.down(hidden_BTF)
        return out_BTD


def build_transformer(section: ModelSection) -> Transformer:
    """`builtin:transformer`. The initial weights follow torch's seed, which all ranks set alike."""
    return Transformer(TransformerArgs.model_validate(section.args), seed=torch.initial_seed())


def _norm(args: TransformerArgs, size: int) -> nn.Module:
    if args.norm == "layernorm":
        return nn.LayerNorm(size, eps=_NORM_EPS)
    return nn.RMSNorm(size, eps=_NORM_EPS)


def _attend(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, dropout: float) -> Tensor:
    if not torch.are_deterministic_algorithms_enabled():
        return functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True, dropout_p=dropout)
    with sdpa_kernel(_REPEATABLE_ATTENTION):
        return functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True, dropout_p=dropout)


def _rotation(count: int, head_dim: int, like: Tensor) -> Rotation:
    """Cosines and sines [T, K/2] of the positions' angles.

    Computed anew in float32 each time: as buffers of the module they would be rounded to bf16 with it.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=like.device) / head_dim
    positions = torch.arange(count, dtype=torch.float32, device=like.device)
    angles = torch.outer(positions, _ROTARY_BASE**-exponents)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotate(x_BHTK: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    first, second = x_BHTK.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@torch.no_grad()
def _initialise(model: Transformer, args: TransformerArgs, seed: int) -> None:
    """Draw all matrices from one generator; those that write to the residual stream shrink with its depth.

    Norm weights keep their ones. A matrix's standard deviation is `init_std`, or 1/sqrt(fan-in) without it.
    Under mu-parametrisation (Yang et al., Tensor Programs V, table 8) the blocks' matrices shrink with the root of
    the width, and embedding and output matrix start as they would at the base width.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:  # noqa: PLR2004 - norms are vectors, the rest matrices
            continue
        std = args.init_std or 1.0 / math.sqrt(parameter.shape[1])
        if args.mup_base_width is not None:
            std *= _mup_init(name, args)
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            std /= math.sqrt(2 * args.layers)
        parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))


def _mup_init(name: str, args: TransformerArgs) -> float:
    """What mu-parametrisation multiplies the usual standard deviation with."""
    if name.startswith("blocks."):
        return 1.0 if args.init_std is None else math.sqrt(args.width_ratio)
    return 1.0 / math.sqrt(args.width_ratio) if args.init_std is None else 1.0
