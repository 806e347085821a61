"""Layer groups from parameter names."""

from __future__ import annotations

import pytest

from stormsail.workers.layer_groups import ROOT, LayerGroups, group_of


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("blocks.3.attention.qkv.weight", "blocks.3"),
        ("embed.weight", "embed"),
        ("model.layers.11.mlp.up.weight", "model.layers.11"),
        ("model.embed_tokens.weight", "model.embed_tokens"),
        ("transformer.h.0.ln_1.bias", "transformer.h.0"),
        ("scale", ROOT),
    ],
)
def test_a_parameter_belongs_to_its_layer(name: str, group: str) -> None:
    assert group_of(name) == group


def test_groups_keep_the_order_of_the_model_and_sum_what_belongs_to_them() -> None:
    groups = LayerGroups.of(["embed.weight", "blocks.0.a.weight", "blocks.1.a.weight", "blocks.0.b.weight"])
    assert groups.names == ("embed", "blocks.0", "blocks.1")
    assert groups.sums([1.0, 2.0, 4.0, 8.0]) == [1.0, 10.0, 4.0]
