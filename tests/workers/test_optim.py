"""The built-in AdamW."""

from __future__ import annotations

import torch
from torch import nn

from stormsail.platform.config.training import OptimizerSection
from stormsail.workers.optim import build_adamw

SECTION = OptimizerSection(lr=0.01, betas=(0.8, 0.9), eps=1e-7, weight_decay=0.3)


class _Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.LayerNorm(2)
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)


def test_only_matrices_decay() -> None:
    model = _Toy()
    matrices, others = build_adamw(SECTION, model.named_parameters()).param_groups
    assert (matrices["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert [tuple(parameter.shape) for parameter in matrices["params"]] == [(2, 3)]
    assert len(others["params"]) == 3


def test_frozen_parameters_are_left_out() -> None:
    model = _Toy()
    groups = build_adamw(SECTION, model.named_parameters()).param_groups
    assert all(parameter is not model.frozen for group in groups for parameter in group["params"])


def test_the_settings_of_the_section_arrive() -> None:
    for group in build_adamw(SECTION, _Toy().named_parameters()).param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.01, (0.8, 0.9), 1e-7)
        assert (group["foreach"], group["fused"]) == (False, False)


def test_a_model_of_one_kind_of_parameter_has_one_group() -> None:
    model = nn.Linear(2, 2, bias=False)
    assert len(build_adamw(SECTION, model.named_parameters()).param_groups) == 1


def test_a_partitioned_matrix_is_still_a_matrix() -> None:
    flat = nn.Parameter(torch.zeros(0))
    flat.ds_shape = torch.Size((4, 4))  # type: ignore[attr-defined]  # as DeepSpeed marks it
    assert build_adamw(SECTION, [("weight", flat)]).param_groups[0]["weight_decay"] == 0.3


def test_the_blocks_matrices_get_their_own_rate_and_keep_their_decay() -> None:
    model = nn.ModuleDict({"blocks": nn.Linear(3, 2), "head": nn.Linear(2, 2, bias=False)})
    section = SECTION.model_copy(update={"args": {"hidden_lr_scale": 0.25}})
    hidden, matrices, others = build_adamw(section, model.named_parameters()).param_groups
    assert hidden["lr"] == 0.01 * 0.25
    assert hidden["lr"] * hidden["weight_decay"] == matrices["lr"] * matrices["weight_decay"]
    assert [tuple(parameter.shape) for parameter in hidden["params"]] == [(2, 3)]
    assert others["weight_decay"] == 0.0
