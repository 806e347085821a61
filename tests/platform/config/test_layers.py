"""Environment and `--set` become settings, and settings lie over the file."""

from __future__ import annotations

from stormsail.platform.config.layers import Tree, environment_settings, override_settings
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.problems import Place

FILE = Place("f", 1)


def tree(values: dict[str, object]) -> Tree:
    return Tree(values, {}, [], FILE)


def test_only_variables_with_the_prefix_are_read_and_outer_keys_come_first() -> None:
    environ = {"STORMSAIL__TRAIN__STEPS": "3", "STORMSAIL__TRAIN": "{seed: 1}", "STORMSAIL_HOME": "x", "HOME": "y"}
    assert [setting.keys for setting in environment_settings(environ)] == [("train",), ("train", "steps")]


def test_values_are_yaml() -> None:
    texts = ["a=3e-4", "a=true", "a=null", "a='3'", "a=[1, x]", "a={b: 1}", "a=b=c"]
    values = [setting.parsed.value for setting in override_settings(texts)]
    assert values == [3e-4, True, None, "3", [1, "x"], {"b": 1}, "b=c"]


def test_sections_are_made_where_they_are_missing() -> None:
    layered = tree({"b": None})
    for setting in override_settings(["a.x.y=1", "b.z=2"]):
        layered.put(setting)
    assert layered.values == {"a": {"x": {"y": 1}}, "b": {"z": 2}}
    assert layered.places["a", "x"] == Place("--set a.x.y=1")


def test_a_plain_storage_text_becomes_a_section_when_a_key_is_set() -> None:
    layered = tree({"storage": "s3://b"})
    layered.put(override_settings(["storage.region=eu"])[0])
    assert layered.values == {"storage": {"url": "s3://b", "region": "eu"}}


def test_a_second_problem_of_one_place_is_left_out() -> None:
    layered = tree({})
    first, other = override_settings(["a=.nan", "b=.nan"])
    layered.note(first.parsed.problems)
    layered.note([*first.parsed.problems, *other.parsed.problems])
    assert [problem.key for problem in layered.problems] == ["a", "b"]


def test_empty_sections_are_filled_and_others_left() -> None:
    layered = tree({"model": {"args": None}, "lr": None, "name": None})
    layered.fill_sections(RunConfig)
    assert layered.values == {"model": {"args": {}}, "lr": {}, "name": None, "train": {}}
