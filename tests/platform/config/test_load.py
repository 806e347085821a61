"""A configuration is loaded from its layers, or refused with everything that is wrong with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stormsail.platform.config.load import ConfigProblems, load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError

GOOD = "name: run-1\ntrain: {steps: 200}\n"

Load = Callable[..., RunConfig]
Problems = Callable[..., dict[str, str]]

MANY = """\
name: My Run
chekpoint_every: 50
seed: true
train:
  steps: "200"
  micro-batch: 8
  warmup_steps: 5
  clip_norm: .nan
  deterministic: on
  precision: bf61
  steps: 300
model:
  args: {d_modle: 3, layers: 0}
data:
  factory: builtin:python_stdlib
schedule:
  warmup_steps: 0.5
future_key: {a: 1}
"""


def test_a_short_file_gets_the_defaults(load: Load) -> None:
    config = load(GOOD)
    assert (config.name, config.train.steps, config.train.global_batch) == ("run-1", 200, 16)


def test_args_of_built_ins_are_written_out(load: Load) -> None:
    config = load(GOOD + "model: {args: {layers: 2}}\n")
    assert config.model.args["layers"] == 2
    assert config.model.args["vocab_size"] == 256
    assert config.data.args["max_bytes"] is None
    assert config.optimizer.args == {"hidden_lr_scale": 1.0}


def test_args_of_own_factories_stay_as_they_are(load: Load) -> None:
    config = load(GOOD + "model: {factory: 'my.models:build', args: {Depth: 2, list: [1, 2.0]}}\n")
    assert config.model.args == {"Depth": 2, "list": [1, 2.0]}


def test_file_then_environment_then_set(load: Load) -> None:
    text = GOOD + "optimizer: {lr: 1, eps: 1e-7, weight_decay: 0}\n"
    environ = {"STORMSAIL__OPTIMIZER__LR": "2", "STORMSAIL__OPTIMIZER__EPS": "2e-7", "STORMSAIL_HOME": "/x", "LR": "9"}
    config = load(text, "optimizer.lr=3", environ=environ)
    assert (config.optimizer.lr, config.optimizer.eps, config.optimizer.weight_decay) == (3, 2e-7, 0)


def test_the_later_set_wins(load: Load) -> None:
    assert load(GOOD, "train.steps=30", "train.steps=40").train.steps == 40


@pytest.mark.parametrize("empty", ["train:\nname: x", "name: x\ncheckpoint:\n", "name: x\nmodel: {args: }\n"])
def test_a_section_with_every_key_in_comments_has_its_defaults(load: Load, empty: str) -> None:
    assert load(empty, "train.steps=200").checkpoint.every_steps == 10


def test_storage_may_be_one_text(load: Load) -> None:
    text = GOOD + "storage: s3://bucket/runs\n"
    assert load(text).storage.url == "s3://bucket/runs"
    assert load(text, "storage.endpoint=http://localhost:9000").storage.endpoint == "http://localhost:9000"


def test_fp16_is_refused_with_the_precisions_that_there_are(problems: Problems) -> None:
    """Case 26: what has no loss scale cannot run out of it."""
    (said,) = problems("name: x\ntrain: {steps: 200, precision: fp16}\n").values()
    assert "`bf16`" in said
    assert "`fp32`" in said
    assert "`fp16`" in said


class TestCase59MistypedKeys:
    """Case 59: a mistyped key is never ignored."""

    def test_a_mistyped_key_gets_its_nearest(self, problems: Problems) -> None:
        assert problems(GOOD + "chekpoint_every: 50\n") == {
            "chekpoint_every": "run.yaml:3: chekpoint_every: expected a top-level key, "
            "found the unknown key `chekpoint_every`; did you mean `checkpoint.every_steps`?"
        }

    def test_a_mistyped_word_beside_a_number_is_one_problem(self, problems: Problems) -> None:
        (said,) = problems(GOOD + "checkpoint: {every_steps: autox, gradient_log: store}\n").values()
        assert "expected a whole number of at least 1 or `auto` (" in said
        assert said.endswith("found the text `autox`; did you mean `auto`?")

    def test_a_right_key_in_the_wrong_section_is_sent_home(self, problems: Problems) -> None:
        found = problems("name: x\ntrain:\n  steps: 200\n  min_ratio: 0.1\n")
        assert found["train.min_ratio"].startswith("run.yaml:4: train.min_ratio: expected a key of `train`")
        assert "`min_ratio` belongs in section `schedule`" in found["train.min_ratio"]

    def test_a_hyphen_is_not_an_underscore(self, problems: Problems) -> None:
        found = problems("name: x\ntrain: {steps: 200, micro-batch: 2}\n")
        assert "did you mean `micro_batch`?" in found["train.micro-batch"]

    def test_a_key_of_a_newer_version_is_refused_with_what_this_one_knows(self, problems: Problems) -> None:
        found = problems(GOOD + "evaluation_suite: {a: 1}\n")
        assert "this version knows here: name, seed, train" in found["evaluation_suite"]

    def test_a_mistyped_arg_of_a_built_in_is_found(self, problems: Problems) -> None:
        found = problems(GOOD + "model:\n  args:\n    d_modle: 64\n")
        assert found["model.args.d_modle"].startswith("run.yaml:5:")
        assert found["model.args.d_modle"].endswith("did you mean `d_model`?")

    def test_all_problems_come_at_once_in_the_order_of_the_file(self, load: Load) -> None:
        with pytest.raises(ConfigProblems) as caught:
            load(MANY, "lr.floorr=1", environ={"STORMSAIL__TRAIN__LOG_EVERY": "x"})
        assert [(problem.line, problem.key) for problem in caught.value.problems] == [
            (1, "name"),
            (2, "chekpoint_every"),
            (3, "seed"),
            (5, "train.steps"),
            (6, "train.micro-batch"),
            (7, "train.warmup_steps"),
            (8, "train.clip_norm"),
            (9, "train.deterministic"),
            (10, "train.precision"),
            (11, "train.steps"),
            (13, "model.args.layers"),
            (13, "model.args.d_modle"),
            (15, "data.factory"),
            (17, "schedule.warmup_steps"),
            (18, "future_key"),
            (None, "train.log_every"),
            (None, "lr.floorr"),
        ]
        assert caught.value.exit_code == 2
        assert caught.value.what == "17 problems in the configuration"


class TestCase60Numbers:
    """Case 60: numbers are numbers, and nothing else is."""

    def test_a_float_needs_no_dot(self, load: Load) -> None:
        assert load(GOOD + "optimizer: {lr: 3e-4}\n").optimizer.lr == 3e-4

    def test_a_whole_float_is_an_integer(self, load: Load) -> None:
        assert load("name: x\ntrain: {steps: 1e6}\n").train.steps == 1_000_000

    def test_a_leading_zero_is_decimal(self, load: Load) -> None:
        assert load("name: x\ntrain: {steps: 0100}\n").train.steps == 100

    def test_on_is_text(self, problems: Problems) -> None:
        found = problems("name: x\ntrain: {steps: 200, deterministic: on}\n")
        assert "found the text `on`; YAML 1.2 knows only true and false" in found["train.deterministic"]

    def test_true_is_no_number(self, problems: Problems) -> None:
        found = problems("name: x\ntrain: {steps: true, clip_norm: true}\n")
        assert found["train.steps"].endswith(
            "expected a whole number of at least 1 (global batches to consume), found true"
        )
        assert found["train.clip_norm"].endswith("found true")

    def test_nan_is_no_number_also_in_args_of_own_code(self, problems: Problems) -> None:
        found = problems(GOOD + "optimizer: {lr: .nan}\nmodel: {factory: 'a:b', args: {x: [.inf]}}\n")
        assert set(found) == {"optimizer.lr", "model.args.x.0"}

    def test_a_number_in_quotes_is_text(self, problems: Problems) -> None:
        assert problems(GOOD + "optimizer: {lr: '3e-4'}\n")["optimizer.lr"].endswith(
            "expected a number above 0 (peak learning rate), found the text `3e-4`; remove the quotes: this is text"
        )

    def test_a_number_is_no_text(self, problems: Problems) -> None:
        assert problems("name: 123\ntrain: {steps: 200}")["name"].endswith("put it in quotes if it is meant as text")

    def test_a_fraction_is_no_count(self, problems: Problems) -> None:
        assert "found the number 1.5" in problems("name: x\ntrain: {steps: 1.5}")["train.steps"]

    def test_a_duplicate_key_is_refused(self, problems: Problems) -> None:
        found = problems("name: x\ntrain:\n  steps: 1\n  steps: 2\n")
        assert found["train.steps"] == (
            "run.yaml:4: train.steps: expected each key once, found the key again; it stands in line 3 already"
        )


def test_missing_keys_are_all_named(problems: Problems) -> None:
    found = problems("seed: 1\n")
    assert set(found) == {"name", "train.steps"}
    assert found["train.steps"].endswith("found nothing: the key is missing")


def test_a_section_that_is_no_mapping_is_one_problem(problems: Problems) -> None:
    assert problems("name: x\ntrain: 5\n") == {
        "train": "run.yaml:2: train: expected a mapping of keys, found the number 5"
    }


@pytest.mark.parametrize("factory", ["builtin:transformr", "models.py", "a b:c", "builtin:", "m:", ":f", "builtin:a.b"])
def test_a_factory_that_cannot_be_is_refused(problems: Problems, factory: str) -> None:
    found = problems(GOOD + f"model: {{factory: '{factory}'}}\n")
    assert "expected `builtin:transformer`, or `module:function`" in found["model.factory"]


@pytest.mark.parametrize("factory", ["m:f", "my.package.models:Build.small", "_a:_b"])
def test_own_factories_are_checked_for_shape_only(load: Load, factory: str) -> None:
    assert load(GOOD + f"data: {{factory: '{factory}', args: {{any: thing}}}}\n").data.factory == factory


def test_contradictions_name_their_key_and_line(problems: Problems) -> None:
    text = "name: x\ntrain: {steps: 10}\nschedule:\n  warmup_steps: 10\ndetect: {spike: {needed: 5, of: 3}}\n"
    found = problems(text)
    assert set(found) == {"schedule.warmup_steps", "detect.spike.needed"}
    assert found["schedule.warmup_steps"] == (
        "run.yaml:4: schedule.warmup_steps: expected settings that fit together, "
        "found a contradiction: schedule.warmup_steps (10) must be below train.steps (10)"
    )


def test_contradictions_are_told_together_with_other_problems(problems: Problems) -> None:
    found = problems("name_: x\ntrain: {steps: 200}\ndetect: {spike: {needed: 5, of: 3}}\n")
    assert set(found) == {"name_", "name", "detect.spike.needed"}


def test_a_contradiction_with_a_wrong_value_is_not_told(problems: Problems) -> None:
    text = GOOD + "cluster: {workers: x}\ndrill: {faults: [{kind: kill, step: 1, rank: 7}]}\n"
    assert set(problems(text)) == {"cluster.workers"}


def test_contradictions_among_args_are_found(problems: Problems) -> None:
    found = problems(GOOD + "model: {args: {d_model: 64, heads: 5}}\n")
    assert "heads (5) must divide d_model (64)" in found["model.args.heads"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.steps", "expected `a.b=value`, found no `=`"),
        ("train.steps=", "expected a value, found nothing"),
        ("train..steps=1", "expected a dotted key, found an empty part in it"),
        ("train.steps=[", "a syntax error"),
        ("train.steps.x=1", "expected a mapping to set it in, found the number 200 above `x`"),
        ("drill.faults.0=1", "expected a list to set it in, found a mapping above `0`"),
        ("drill.faults.0.step=1", "drill.faults: expected a list (what to break, when), found a mapping"),
        ("seed.0=1", "expected a list to set it in"),
        ("0=1", "found the unknown key `0`"),
    ],
)
def test_settings_that_cannot_be_are_refused(load: Load, setting: str, words: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        load(GOOD + "seed: 1\n", setting)
    assert words in str(caught.value)
    assert all(problem.source == f"--set {setting}" for problem in caught.value.problems)


def test_items_of_a_list_can_be_set(load: Load) -> None:
    text = GOOD + "drill: {faults: [{kind: kill, step: 1}, {kind: kill, step: 2}]}\n"
    assert [fault.step for fault in load(text, "drill.faults.1.step=9").drill.faults] == [1, 9]
    with pytest.raises(ConfigProblems, match="found a list of 2 above `2`"):
        load(text, "drill.faults.2={kind: kill, step: 3}")


def test_setting_a_mapping_replaces_it(load: Load) -> None:
    text = GOOD + "optimizer: {lr: 1, eps: 1}\n"
    assert load(text, "optimizer={lr: 2}").optimizer.eps == 1e-8


def test_a_replaced_value_is_no_longer_the_files(problems: Problems) -> None:
    found = problems(GOOD + "optimizer: {lr: 1, eps: 1}\n", "optimizer={lr: 0, x: 1}")
    assert {key: text.partition(":")[0] for key, text in found.items()} == {
        "optimizer.lr": "--set optimizer={lr",
        "optimizer.x": "--set optimizer={lr",
    }


def test_a_bad_variable_is_named(problems: Problems) -> None:
    found = problems(environ={"STORMSAIL__TRAIN__STEPS": "many", "STORMSAIL__FOO": "1"})
    assert found["train.steps"].startswith(
        "environment variable STORMSAIL__TRAIN__STEPS: train.steps: expected a whole"
    )
    assert found["foo"].startswith("environment variable STORMSAIL__FOO")


def load_path(path: Path) -> RunConfig:
    return load_config(path, environ={})


def test_a_missing_file_is_one_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file") as caught:
        load_path(tmp_path / "run.yaml")
    assert "stormsail init" in caught.value.todo


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_path(tmp_path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "\ufeff"])
def test_an_empty_file_is_one_error(load: Load, text: str) -> None:
    with pytest.raises(ConfigError, match="the file is empty"):
        load(text)


@pytest.mark.parametrize(("text", "found"), [("- 1\n", "a list of 1"), ("hello\n", "the text `hello`"), ("3", "3")])
def test_a_file_without_keys_is_one_error(load: Load, text: str, found: str) -> None:
    with pytest.raises(ConfigError, match="expected a mapping of keys") as caught:
        load(text)
    assert found in caught.value.what


def test_a_syntax_error_names_its_line(problems: Problems) -> None:
    assert problems("name: x\ntrain: {steps: 1\n")[""].startswith("run.yaml:3: expected YAML, found a syntax error")


def test_a_file_that_is_not_utf8_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"name: x\nseed: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        load_path(path)
    assert caught.value.where == f"{path}:2"


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="this is no configuration"):
        load_path(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(load: Load) -> None:
    assert load("\ufeff" + GOOD).name == "run-1"


KEYS = st.sampled_from(
    ["name", "train", "steps", "model", "args", "factory", "drill", "faults", "kind", "storage", "x"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(width=16)
    | st.sampled_from(["run", "kill", "builtin:x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(KEYS, VALUES, max_size=5), text=st.none() | st.text(max_size=40))
def test_whatever_is_in_the_file_the_answer_is_a_configuration_or_a_config_error(
    tmp_path: Path, values: dict[str, object], text: str | None
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(repr_yaml(values) if text is None else text, encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigError):
        assert load_path(path).train.steps >= 1


def repr_yaml(value: object) -> str:
    """JSON-like flow YAML, with YAML's own names for the special numbers."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {repr_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(repr_yaml, value)) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = str(value)
    return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(text, f"'{text}'" if isinstance(value, str) else text)
