"""What the built-in factories take as `args`: names, types and defaults, without building anything.

The worker builds from these models and `load.py` checks against them, so that a typo in `model.args` is
found on a laptop and not on the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, model_validator

from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.section import Positive, Section

PREFIX = "builtin:"

Kind = Literal["model", "data", "optimizer"]
KINDS: tuple[Kind, ...] = ("model", "data", "optimizer")


class TransformerArgs(Section):
    """A decoder-only transformer: pre-norm blocks, rotary positions, causal attention, GELU MLP of two matrices, no biases."""

    vocab_size: Positive = Field(256, description="distinct tokens; 256 for bytes")
    d_model: Positive = Field(256, description="width of the residual stream")
    layers: Positive = Field(4, description="blocks")
    heads: Positive = Field(4, description="attention heads; they share d_model evenly, an even number of dims each")
    mlp_ratio: Annotated[float, Field(gt=0.0)] = Field(4.0, description="hidden width of the MLP over d_model")
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="share of activations dropped in training"
    )
    norm: Literal["rmsnorm", "layernorm"] = Field("rmsnorm", description="normalisation before each half of a block")
    qk_norm: bool = Field(default=False, description="normalise queries and keys per head, against growing logits")
    init_std: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="standard deviation of the initial weights; null: 1/sqrt(fan-in)"
    )
    tie_embeddings: bool = Field(default=True, description="use the token embedding as the output matrix too")
    mup_base_width: Positive | None = Field(
        None,
        description="mu-parametrisation: the d_model at which it equals the usual one; null: off. "
        "Keep d_model / heads constant and set optimizer.args.hidden_lr_scale to mup_base_width / d_model",
    )

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> TransformerArgs:
        if self.d_model % self.heads:
            msg = f"heads ({self.heads}) must divide d_model ({self.d_model})"
            raise ValueError(msg)
        if self.head_dim % 2:
            msg = f"heads ({self.heads}) leaves {self.head_dim} dims each; rotary positions need an even number"
            raise ValueError(msg)
        return self

    @property
    def head_dim(self) -> int:
        """Dims of one head."""
        return self.d_model // self.heads

    @property
    def hidden(self) -> int:
        """Hidden width of the MLP."""
        return max(1, round(self.d_model * self.mlp_ratio))

    @property
    def width_ratio(self) -> float:
        """`mup_base_width` over `d_model`; 1.0 without mu-parametrisation."""
        return 1.0 if self.mup_base_width is None else self.mup_base_width / self.d_model

    def parameter_count(self) -> int:
        """Trained elements of the whole model."""
        norm = self.d_model * (2 if self.norm == "layernorm" else 1)
        per_head = self.head_dim * (2 if self.norm == "layernorm" else 1)
        block = 4 * self.d_model**2 + 2 * self.d_model * self.hidden + 2 * norm + (2 * per_head if self.qk_norm else 0)
        embeddings = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        return embeddings + self.layers * block + norm


Share = Annotated[float, Field(ge=0.0, lt=1.0)]
HOLDOUT = "share of the samples, at the end of the stream, that is not trained on but evaluated on"


class PythonStdlibArgs(Section):
    """The sources of the Python standard library that runs this, read as bytes."""

    holdout: Share = Field(0.02, description=HOLDOUT)
    max_bytes: Positive | None = Field(None, description="use only the first bytes; null: all")


class TokensArgs(Section):
    """A folder of token shards of your own."""

    path: Annotated[str, Field(pattern="^[/~]")] = Field(
        description="the folder, absolute or below `~`: workers run in other folders than the command"
    )
    holdout: Share = Field(0.0, description=HOLDOUT)


class AdamWArgs(Section):
    """AdamW takes nearly everything from the section itself."""

    hidden_lr_scale: Annotated[float, Field(gt=0.0)] = Field(
        1.0,
        description="multiplies the learning rate of the blocks' matrices, and divides their weight decay; "
        "mu-parametrisation sets it to base width / width",
    )


_BUILTINS: Mapping[Kind, Mapping[str, type[Section]]] = MappingProxyType(
    {
        "model": MappingProxyType({"transformer": TransformerArgs}),
        "data": MappingProxyType({"python-stdlib": PythonStdlibArgs, "tokens": TokensArgs}),
        "optimizer": MappingProxyType({"adamw": AdamWArgs}),
    }
)


def builtins_of(kind: Kind) -> Mapping[str, type[Section]]:
    """The args models of the built-in factories of this kind, by name without the prefix."""
    return _BUILTINS[kind]


def builtin_args(kind: Kind, name: str) -> type[Section] | None:
    """The args model of a built-in, or None if there is no such built-in.

    Args:
        kind: Section that the factory belongs to.
        name: Name, with or without `builtin:`.
    """
    return _BUILTINS[kind].get(name.removeprefix(PREFIX))


def with_builtin_defaults(config: RunConfig) -> RunConfig:
    """The same run with the args of its built-ins written out in full, so that a default stays what it was.

    Raises:
        pydantic.ValidationError: The args do not fit the built-in.
    """
    filled: dict[str, object] = {}
    for kind in KINDS:
        section = getattr(config, kind)
        model = builtin_args(kind, section.factory) if section.factory.startswith(PREFIX) else None
        if model is not None:
            args = model.model_validate(section.args).model_dump(mode="json")
            filled[kind] = section.model_copy(update={"args": args})
    return config.model_copy(update=filled)
