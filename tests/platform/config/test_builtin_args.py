"""The args of the built-ins, and what follows from them by arithmetic."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.builtin_args import (
    KINDS,
    AdamWArgs,
    PythonStdlibArgs,
    TransformerArgs,
    builtin_args,
    builtins_of,
    with_builtin_defaults,
)
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.training import ModelSection, TrainSection


def test_a_built_in_is_found_with_and_without_the_prefix() -> None:
    assert builtin_args("model", "transformer") is TransformerArgs
    assert builtin_args("data", "builtin:python-stdlib") is PythonStdlibArgs
    assert builtin_args("optimizer", "adamw") is AdamWArgs
    assert builtin_args("model", "adamw") is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_factory_of_each_section_is_a_built_in(kind: str) -> None:
    section = getattr(RunConfig(name="x", train=TrainSection(steps=100)), kind)
    assert section.factory.removeprefix("builtin:") in builtins_of(kind)  # type: ignore[arg-type]  # parametrised from KINDS


def test_parameters_are_counted_by_hand() -> None:
    args = TransformerArgs(vocab_size=10, d_model=8, layers=2, heads=2, mlp_ratio=4.0, tie_embeddings=True)
    attention, mlp, norms = 4 * 8 * 8, 2 * 8 * 32, 2 * 8
    assert args.parameter_count() == 10 * 8 + 2 * (attention + mlp + norms) + 8


def test_untying_adds_one_matrix() -> None:
    tied, untied = TransformerArgs(tie_embeddings=True), TransformerArgs(tie_embeddings=False)
    assert untied.parameter_count() - tied.parameter_count() == 256 * 256


def test_the_default_model_has_two_to_five_million_parameters() -> None:
    assert 2e6 < TransformerArgs().parameter_count() < 5e6


@pytest.mark.parametrize("heads", [3, 256])
def test_heads_must_share_the_width_evenly(heads: int) -> None:
    with pytest.raises(ValidationError, match="heads"):
        TransformerArgs(d_model=256, heads=heads)


def test_defaults_are_written_out_once() -> None:
    config = RunConfig(name="x", train=TrainSection(steps=100), model=ModelSection(args={"layers": 2}))
    full = with_builtin_defaults(config)
    assert full.model.args["layers"] == 2
    assert full.model.args["heads"] == 4
    assert with_builtin_defaults(full) == full


def test_args_of_own_code_are_left_alone() -> None:
    own = ModelSection(factory="m:f", args={"a": 1})
    config = RunConfig(name="x", train=TrainSection(steps=100), model=own)
    assert with_builtin_defaults(config).model == own
