"""The words for what a key expects, what was found, and what was probably meant."""

from __future__ import annotations

import pytest

from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.training import OptimizerSection, TrainSection
from stormsail.platform.config.vocabulary import Vocabulary, in_words, nearest, unknown_key_hint

RUN = Vocabulary(RunConfig)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (("train", "steps"), "a whole number of at least 1 (global batches to consume)"),
        (("train", "precision"), "one of `bf16`, `fp32` (compute precision; masters and moments are fp32)"),
        (("train", "clip_norm"), "a number above 0 or null (global gradient norm limit; null is off)"),
        (("rollback", "lr_factor"), "a number above 0 and below 1 (the learning rate is multiplied by this)"),
        (("train", "deterministic"), "true or false (refuse operations whose result depends on timing)"),
        (
            ("optimizer", "betas"),
            "a list of 2, each a number of at least 0 and at most 1 (AdamW's exponential decay rates of the two moments)",
        ),
        (("model", "args"), "a mapping of keys (handed to the factory as its `args`)"),
        (("drill", "faults"), "a list (what to break, when)"),
        (("drill", "faults", 0, "kill", "rank"), "a whole number of at least 0 (the rank that it hits)"),
        (("train",), "a mapping of keys"),
        (("nowhere",), "a value"),
    ],
)
def test_expectations_are_read_from_the_model(location: tuple[str | int, ...], words: str) -> None:
    _, node = RUN.find(location)
    assert RUN.expectation(node) == words


def test_a_chosen_union_member_is_no_key() -> None:
    assert RUN.find(("drill", "faults", 2, "kill", "step"))[0] == ("drill", "faults", 2, "step")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing (null)"),
        (True, "true"),
        (3, "the number 3"),
        (0.5, "the number 0.5"),
        ("abc", "the text `abc`"),
        ("x" * 61, f"the text `{'x' * 60}...`"),
        ([1, 2], "a list of 2"),
        ({"a": 1}, "a mapping"),
    ],
)
def test_findings_are_said_as_a_person_would(value: object, words: str) -> None:
    assert in_words(value) == words


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        (("train", "Steps"), "did you mean `steps`? Keys are lower-case, with underscores"),
        (("train", "micro-batch"), "did you mean `micro_batch`? Keys are lower-case, with underscores"),
        (("train", "warmup_steps"), "`warmup_steps` belongs in section `schedule`"),
        (("train", "name"), "`name` belongs in the top level"),
        (("train", "d_model"), "`d_model` belongs in section `model.args`"),
        (("train", "step"), "did you mean `steps`?"),
        (("train", "weight_decy"), "did you mean `optimizer.weight_decay`?"),
        (("train", "zzz"), f"this version knows here: {', '.join(TrainSection.model_fields)}"),
    ],
)
def test_unknown_keys_get_the_nearest_right_thing(keys: tuple[str, ...], hint: str) -> None:
    assert unknown_key_hint(keys, tuple(TrainSection.model_fields)) == hint


def test_a_home_elsewhere_does_not_hide_a_near_key_here() -> None:
    hint = unknown_key_hint(("optimizer", "eps_"), tuple(OptimizerSection.model_fields))
    assert hint == "did you mean `eps`?"
    hint = unknown_key_hint(("checkpoint", "steps"), ("every_steps", "keep_last"))
    assert hint == "`steps` belongs in section `train`; the nearest key here is `every_steps`"


def test_a_section_without_keys_says_so() -> None:
    assert unknown_key_hint(("optimizer", "args", "zzz"), ()) == "this version takes no keys here"


def test_nothing_is_near_to_everything() -> None:
    assert nearest("zzz", ("steps", "name")) == ""


def test_a_runs_configuration_in_the_place_of_another_file_is_told() -> None:
    assert unknown_key_hint(("model",), ("name", "target", "proxies")) == (
        "`model` is a key of a run's configuration, which `stormsail train` takes"
    )
