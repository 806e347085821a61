"""From references in the configuration to models, data and optimizers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from stormsail.platform.config.builtin_args import KINDS, builtins_of
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.training import DataSection, ModelSection, OptimizerSection
from stormsail.platform.data.source import ShardSource
from stormsail.platform.data.tokens import TokenDataset, write_shards
from stormsail.platform.errors import ConfigError, UserCodeError
from stormsail.workers import factories
from stormsail.workers.factories import build_data, build_model, build_optimizer, call_model, held_out_of

GOOD_MODEL = """
from torch import nn
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Linear(1, width)
    def forward(self, tokens, targets, mask):
        return tokens.float() * mask
def build(section):
    return Model(section.args["width"])
"""

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write the user's modules into a folder of the import path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[str] = []

    def write_module(text: str, name: str = "theirs") -> None:
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        importlib.invalidate_caches()

    yield write_module
    for name in written:
        sys.modules.pop(name, None)


def _model(factory: str, **args: object) -> nn.Module:
    return build_model(ModelSection(factory=factory, args=args))


def test_the_built_ins_are_those_that_the_configuration_knows() -> None:
    known = {"model": factories.MODELS, "data": factories.DATA, "optimizer": factories.OPTIMIZERS}
    assert {kind: sorted(known[kind]) for kind in KINDS} == {kind: sorted(builtins_of(kind)) for kind in KINDS}


def test_a_built_in_model_is_built_from_its_args() -> None:
    model = _model("builtin:transformer", d_model=16, layers=1, heads=2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 256 * 16 + 12 * 16**2 + 3 * 16


def test_the_users_function_gets_its_section(write: Write) -> None:
    write(GOOD_MODEL)
    assert _model("theirs:build", width=5).get_parameter("weight.weight").shape == (5, 1)


def test_a_method_of_a_class_is_a_factory_too(write: Write) -> None:
    write(GOOD_MODEL + "\nclass Maker:\n    make = staticmethod(build)\n")
    assert isinstance(_model("theirs:Maker.make", width=5), nn.Module)


def test_args_that_do_not_fit_a_built_in_are_the_configurations_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        _model("builtin:transformer", layres=3)
    assert caught.value.where == "model.args.layres"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("transformer", "neither builtin:NAME nor module:function"),
        ("theirs:", "neither builtin:NAME nor module:function"),
        ("builtin:transfomer", "Did you mean builtin:transformer?"),
        ("builtin:zzz", "There are: transformer"),
    ],
)
def test_a_malformed_reference_says_what_would_be_right(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _model(reference)


def test_a_missing_module_says_where_it_was_looked_for(write: Write, tmp_path: Path) -> None:
    write("")
    with pytest.raises(UserCodeError, match="there is no module 'nowhere_at_all'") as caught:
        _model("nowhere_at_all:build")
    assert str(tmp_path) in caught.value.todo
    assert caught.value.exit_code == 6


def test_a_missing_submodule_is_named_whole(write: Write) -> None:
    write(GOOD_MODEL)
    with pytest.raises(UserCodeError, match=r"no module 'theirs.sub'"):
        _model("theirs.sub:build")


def test_an_import_that_fails_inside_the_users_module_is_not_a_missing_module(write: Write) -> None:
    write("import missing_dependency_of_theirs\n")
    with pytest.raises(UserCodeError, match="importing theirs raised ModuleNotFoundError") as caught:
        _model("theirs:build")
    assert caught.value.where.endswith("theirs.py:1")
    assert "missing_dependency_of_theirs" in caught.value.details


def test_a_syntax_error_names_its_line(write: Write) -> None:
    write("x = 1\ndef build(:\n")
    with pytest.raises(UserCodeError, match="SyntaxError") as caught:
        _model("theirs:build")
    assert caught.value.where.endswith("theirs.py:2")


def test_a_misspelt_function_is_told_the_nearest_name(write: Write) -> None:
    write(GOOD_MODEL)
    with pytest.raises(UserCodeError, match="Did you mean 'build'"):
        _model("theirs:biuld")


def test_something_that_is_no_function_is_refused(write: Write) -> None:
    write("build = 5\n")
    with pytest.raises(UserCodeError, match="theirs:build is int, expected a function"):
        _model("theirs:build")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(section):\n    return 5\n", "returned int, expected a torch.nn.Module"),
        ("from torch import nn\ndef build(section):\n    return nn.Identity()\n", "parameters that are trained"),
        ("from torch import nn\ndef build(section):\n    return nn.Linear(2, 2)\n", "cannot be called as forward"),
        ("def build():\n    return 5\n", "raised TypeError: build.. takes 0 positional arguments"),
    ],
    ids=["type", "nothing to train", "signature", "factory signature"],
)
def test_a_model_that_cannot_be_trained_is_refused_before_the_first_step(write: Write, text: str, message: str) -> None:
    write(text)
    with pytest.raises(UserCodeError, match=message):
        _model("theirs:build")


def _batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3)


def test_a_forward_pass_returns_a_loss_per_token(write: Write) -> None:
    write(GOOD_MODEL)
    assert call_model(_model("theirs:build", width=1), *_batch()).shape == (2, 3)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("(tokens * mask).mean()", r"Tensor of shape \[\]"),
        ("tokens", "torch.int64"),
        ("{'loss': 1}", "returned dict"),
    ],
)
def test_a_forward_pass_that_returns_something_else_is_told_what_is_wanted(
    write: Write, result: str, message: str
) -> None:
    write(GOOD_MODEL.replace("tokens.float() * mask", result))
    model = _model("theirs:build", width=1)
    with pytest.raises(UserCodeError, match=message) as caught:
        call_model(model, *_batch())
    assert "shape [2, 3]" in caught.value.what


def test_an_exception_in_the_users_forward_is_the_users(write: Write) -> None:
    write(GOOD_MODEL.replace("tokens.float() * mask", "self.weight(tokens.float())"))
    model = _model("theirs:build", width=1)
    with pytest.raises(UserCodeError, match="the model's forward raised RuntimeError: mat1 and mat2") as caught:
        call_model(model, *_batch())
    assert caught.value.where.endswith("theirs.py:8")


def test_a_token_beyond_the_vocabulary_is_explained() -> None:
    model = _model("builtin:transformer", vocab_size=8, d_model=8, layers=1, heads=2)
    tokens, targets, mask = _batch()
    with pytest.raises(UserCodeError, match="token 9, but the model knows only 8"):
        call_model(model, tokens + 8, targets, mask)


def test_the_built_in_optimizer_is_adamw() -> None:
    model = _model("builtin:transformer", d_model=16, layers=1, heads=2)
    optimizer = build_optimizer(OptimizerSection(lr=0.5), list(model.named_parameters()))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert len(optimizer.param_groups) == 2


def test_the_users_optimizer_gets_section_and_named_parameters(write: Write) -> None:
    write("import torch\ndef build(s, named):\n    return torch.optim.SGD([p for _, p in named], lr=s.lr)\n")
    model = nn.Linear(2, 2)
    optimizer = build_optimizer(OptimizerSection(factory="theirs:build", lr=0.5), list(model.named_parameters()))
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "returned NoneType, expected a torch.optim.Optimizer"),
        ("return torch.optim.SGD([named[0][1]], lr=1.0)", "1 left out, first bias"),
    ],
    ids=["type", "forgotten parameter"],
)
def test_an_optimizer_that_would_not_train_everything_is_refused(write: Write, body: str, message: str) -> None:
    write(f"import torch\ndef build(s, named):\n    {body}\n")
    model = nn.Linear(2, 2)
    with pytest.raises(UserCodeError, match=message):
        build_optimizer(OptimizerSection(factory="theirs:build"), list(model.named_parameters()))


def test_a_frozen_parameter_needs_no_optimizer(write: Write) -> None:
    write("import torch\ndef build(s, named):\n    return torch.optim.SGD([named[0][1]], lr=1.0)\n")
    model = nn.Linear(2, 2)
    model.bias.requires_grad = False
    build_optimizer(OptimizerSection(factory="theirs:build"), list(model.named_parameters()))


GOOD_DATA = """
import numpy as np
class Source:
    digest = "v1"
    def __init__(self, length):
        self.length = length
    def samples(self):
        return 7
    def sample(self, index):
        row = np.arange(index, index + self.length + 1)
        return row[:-1], row[1:], np.ones(self.length)
def build(section):
    return Source(section.sequence_tokens)
"""


def test_a_built_in_data_source_is_opened(tmp_path: Path) -> None:
    write_shards(tmp_path / "data", [np.arange(100)], vocab_size=256, shard_tokens=100, source="x")
    section = DataSection(factory="builtin:tokens", args={"path": str(tmp_path / "data")}, sequence_tokens=9)
    assert build_data(section).samples() == 11


def test_missing_built_in_data_are_one_clear_error(tmp_path: Path) -> None:
    section = DataSection(factory="builtin:tokens", args={"path": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="no data set here"):
        build_data(section)


def test_the_users_data_are_brought_to_the_models_types(write: Write) -> None:
    write(GOOD_DATA)
    source = build_data(DataSection(factory="theirs:build", sequence_tokens=4))
    tokens, targets, mask = source.sample(2)
    assert (tokens.tolist(), targets.tolist(), mask.tolist()) == ([2, 3, 4, 5], [3, 4, 5, 6], [1.0] * 4)
    assert [str(array.dtype) for array in (tokens, targets, mask)] == ["int64", "int64", "float32"]
    assert (source.samples(), source.digest) == (7, "v1")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('digest = "v1"', "", r"missing: digest"),
        ('digest = "v1"', "digest = 5", "digest is 5"),
        ("return 7", "return 0", "from 1 on"),
        ("return 7", "return 7.5", "from 1 on"),
        ("self.length + 1)", "self.length)", r"tokens is ndarray of shape \[3\]"),
        (
            "index + self.length + 1)",
            "index + self.length + 1).astype(float)",
            "tokens is .*float64, expected integers",
        ),
        ("np.ones(self.length)", "np.full(self.length, 0.5)", "other values than 0 and 1"),
        (", np.ones(self.length)", "", "expected .tokens, targets, mask."),
        ("np.arange(index,", "np.random.default_rng().integers(0, 10**9) + np.arange(index,", "differs between two"),
        ("return 7", "raise OSError('gone')", "raised OSError: gone"),
    ],
    ids=["member", "digest", "none", "count", "length", "type", "mask", "parts", "random", "raises"],
)
def test_data_of_another_form_are_refused_on_the_first_sample(write: Write, old: str, new: str, message: str) -> None:
    assert old in GOOD_DATA
    write(GOOD_DATA.replace(old, new))
    with pytest.raises(UserCodeError, match=message) as caught:
        build_data(DataSection(factory="theirs:build", sequence_tokens=4))
    assert "theirs.py:" in caught.value.where


def evaluated(**sections: object) -> RunConfig:
    return RunConfig.model_validate(
        {"name": "x", "train": {"steps": 100}, "eval": {"every_steps": 10}, **sections}  # as the worker gets it
    )


HOLDS_OUT = GOOD_DATA.replace(
    "def build(section):",
    "    def held_out(self):\n        return HeldOut(self.length)\nclass HeldOut(Source):\n    digest = 'held out'\ndef build(section):",
)
THEIRS = {"factory": "theirs:build", "sequence_tokens": 4}


def test_held_out_samples_of_the_users_are_checked_like_the_others(write: Write) -> None:
    write(HOLDS_OUT)
    config = evaluated(data=THEIRS)
    held_out = held_out_of(build_data(config.data), config)
    assert held_out is not None
    assert (held_out.samples(), held_out.digest) == (7, "held out")
    assert [str(array.dtype) for array in held_out.sample(2)] == ["int64", "int64", "float32"]


def test_a_run_that_is_never_evaluated_asks_for_none(write: Write) -> None:
    write(HOLDS_OUT.replace("return HeldOut(self.length)", "raise OSError"))
    config = evaluated(data=THEIRS, eval={})
    assert held_out_of(build_data(config.data), config) is None


@pytest.mark.parametrize("text", [GOOD_DATA, HOLDS_OUT.replace("return HeldOut(self.length)", "return None")])
def test_data_that_hold_nothing_out_are_told_what_to_implement(write: Write, text: str) -> None:
    write(text)
    config = evaluated(data=THEIRS)
    with pytest.raises(ConfigError, match="theirs:build holds no sample out of training") as caught:
        held_out_of(build_data(config.data), config)
    assert "a method `held_out()`" in caught.value.todo


def test_a_folder_too_small_for_its_share_holds_nothing_out(tmp_path: Path) -> None:
    write_shards(tmp_path / "data", [np.arange(100)], vocab_size=256, shard_tokens=100, source="x")
    args = {"path": str(tmp_path / "data"), "holdout": 0.001}
    config = evaluated(data={"factory": "builtin:tokens", "args": args, "sequence_tokens": 99})
    with pytest.raises(ConfigError, match=r"builtin:tokens holds no sample out") as caught:
        held_out_of(ShardSource(TokenDataset.open(tmp_path / "data"), 99), config)
    assert "raise data.args.holdout" in caught.value.todo


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("return 5", r"held_out\(\) returned int, expected a data source .*missing: samples, sample, digest"),
        ("raise OSError('gone')", r"held_out\(\) raised OSError: gone"),
        ("return self", r"held_out\(\) returned a data source with the digest of what is trained on, 'v1'"),
        ("return HeldOut(self.length + 1)", r"held_out\(\): sample\(0\): tokens is ndarray of shape \[5\]"),
    ],
)
def test_what_is_held_out_in_another_form_is_the_users_error(write: Write, answer: str, message: str) -> None:
    write(HOLDS_OUT.replace("return HeldOut(self.length)", answer))
    config = evaluated(data=THEIRS)
    with pytest.raises(UserCodeError, match=message):
        held_out_of(build_data(config.data), config)
