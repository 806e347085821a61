"""The largest attention logit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stormsail.platform.config.builtin_args import TransformerArgs
from stormsail.tuning.probe import max_attention_logit
from stormsail.workers.model import Attention, Transformer

TOKENS = torch.arange(8)[None]


def model(**args: object) -> Transformer:
    return Transformer(TransformerArgs(vocab_size=8, d_model=16, layers=2, heads=2, **args), seed=1)  # type: ignore[arg-type]  # plain test values


def test_it_grows_with_the_square_of_the_projection() -> None:
    small, large = model(), model()
    with torch.no_grad():
        for layer in large.modules():
            if isinstance(layer, Attention):
                layer.qkv.weight[:32].mul_(2.0)  # queries and keys; values as they were
    first = max_attention_logit(small, TOKENS)
    assert first is not None
    small.blocks, large.blocks = small.blocks[:1], large.blocks[:1]
    before, after = max_attention_logit(small, TOKENS), max_attention_logit(large, TOKENS)
    assert before is not None
    assert after == pytest.approx(4 * before, rel=1e-4)


def test_normalised_queries_and_keys_bound_it_by_the_root_of_their_size() -> None:
    found = max_attention_logit(model(qk_norm=True), TOKENS)
    assert found is not None
    assert found <= 8**0.5 + 1e-3


def test_it_leaves_no_hook_behind_and_knows_only_the_built_in_attention() -> None:
    probed = model()
    max_attention_logit(probed, TOKENS)
    assert not any(layer._forward_pre_hooks for layer in probed.modules())
    assert max_attention_logit(nn.Linear(2, 2), TOKENS) is None
