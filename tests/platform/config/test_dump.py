"""A stored configuration comes back the same, and its digest follows what matters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.config.dump import config_digest, dump_config, parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.problems import ConfigProblems
from stormsail.platform.errors import ConfigError


def run(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"name": "x", "train": {"steps": 100}, **sections})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(args=st.dictionaries(st.text(max_size=5), JSON, max_size=4), lr=st.floats(1e-30, 1e10), seed=st.integers(0))
def test_a_dump_comes_back_the_same(args: dict[str, object], lr: float, seed: int) -> None:
    config = run(seed=seed, optimizer={"lr": lr}, model={"factory": "m:f", "args": args})
    again = parse_dump(dump_config(config))
    assert again == config
    assert dump_config(again) == dump_config(config)


def test_faults_and_lists_come_back() -> None:
    config = run(
        optimizer={"betas": [0.8, 0.9]},
        drill={"faults": [{"kind": "kill", "step": 3}, {"kind": "nonfinite", "step": 5, "times": 2}], "twin_step": 4},
    )
    assert parse_dump(dump_config(config)) == config


def test_a_dump_is_sorted_json_with_every_key() -> None:
    values = json.loads(dump_config(run()))
    assert list(values) == sorted(RunConfig.model_fields)
    assert values["optimizer"]["betas"] == [0.9, 0.95]


def test_a_damaged_dump_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        parse_dump('{"name": ')


def test_a_dump_of_a_newer_version_says_so() -> None:
    values = json.loads(dump_config(run())) | {"evaluation": {}}
    with pytest.raises(ConfigProblems, match="stored configuration: evaluation") as caught:
        parse_dump(json.dumps(values))
    assert "version" in caught.value.todo


SAME = [
    {"tracking": {"uri": None}},
    {"cluster": {"workers": 3}},
    {"storage": "s3://b"},
    {"train": {"steps": 100, "log_every": 3, "threads": 2, "micro_batch": 4}},
    {"model": {"args": {"layers": 4}}},
    {"ladder": {"episodes_total": 3}},
]
OTHER = [
    {"seed": 2},
    {"train": {"steps": 101}},
    {"train": {"steps": 100, "precision": "fp32"}},
    {"train": {"steps": 100, "global_batch": 8}},
    {"train": {"steps": 100, "clip_norm": None}},
    {"model": {"args": {"layers": 3}}},
    {"data": {"sequence_tokens": 64}},
    {"optimizer": {"lr": 2e-3}},
    {"schedule": {"warmup_steps": 21}},
]


@pytest.mark.parametrize("sections", SAME, ids=str)
def test_what_does_not_touch_the_numbers_leaves_the_digest(sections: dict[str, object]) -> None:
    assert config_digest(run(**sections)) == config_digest(run())


@pytest.mark.parametrize("sections", OTHER, ids=str)
def test_what_defines_the_numbers_changes_the_digest(sections: dict[str, object]) -> None:
    assert config_digest(run(**sections)) != config_digest(run())


def test_the_digest_is_the_same_in_every_process() -> None:
    config = run(model={"factory": "m:f"}, data={"factory": "m:d"}, optimizer={"factory": "m:o"})
    assert config_digest(config) == "3fec10ce0bd28b835c6c2e5d96f0b81c646b585b038ce7802786a3eb7f7f3034"
