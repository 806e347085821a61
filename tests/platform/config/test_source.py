"""YAML is read by the rules of 1.2, with a line for each key, and without its traps."""

from __future__ import annotations

import pytest

from stormsail.platform.config.problems import Place
from stormsail.platform.config.source import parse_yaml


def only_problem(text: str) -> str:
    (problem,) = parse_yaml(text, "f").problems
    return str(problem)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e6", 1e6),
        ("1E6", 1e6),
        (".5", 0.5),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("+1", 1),
        ("-0.0", 0.0),
        ("true", True),
        ("on", "on"),
        ("no", "no"),
        ("~", None),
        ("null", None),
        ("1:30", "1:30"),
        ("2026-11-29", "2026-11-29"),
        ("=", "="),
        ("'3'", "3"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    parsed = parse_yaml(f"key: {text}", "f")
    assert parsed.problems == []
    assert parsed.value == {"key": value}
    assert isinstance(parsed.value, dict)
    assert type(parsed.value["key"]) is type(value)


def test_every_key_and_item_has_its_line() -> None:
    parsed = parse_yaml("a: 1\nb:\n  c: 2\n  d:\n    - 3\n    - 4\n", "f")
    lines = {keys: place.line for keys, place in parsed.places.items()}
    assert lines == {(): 1, ("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "d"): 4, ("b", "d", 0): 5, ("b", "d", 1): 6}


def test_a_value_from_elsewhere_goes_below_its_path_and_has_no_line() -> None:
    parsed = parse_yaml("{x: 1}", "--set a={x: 1}", at=("a",), lines=False)
    assert parsed.places == {("a",): Place("--set a={x: 1}"), ("a", "x"): Place("--set a={x: 1}")}


def test_all_duplicate_keys_are_found_with_both_lines() -> None:
    parsed = parse_yaml("a: 1\nb: {c: 1}\na: 2\nb: 3\n", "f")
    assert [(problem.key, problem.line) for problem in parsed.problems] == [("a", 3), ("b", 4)]
    assert "it stands in line 1 already" in parsed.problems[0].found
    assert parsed.value == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize("text", [".nan", ".inf", "-.inf", "1e999"])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    assert only_problem(f"a: 1\nb: {text}") == f"f:2: b: expected a finite number, found `{text}`"


@pytest.mark.parametrize("key", ["1", "true", "null", "1.5", "[a]", "{a: 1}"])
def test_keys_that_are_not_text_are_refused(key: str) -> None:
    assert only_problem(f"? {key}\n: x").startswith("f:1: expected a key that is text")


def test_merge_keys_are_refused() -> None:
    assert "the merge key <<" in only_problem("a: &x {b: 1}\nc:\n  <<: *x\n")


def test_aliases_of_whole_values_work() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "f").value == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_value_that_contains_itself_is_refused() -> None:
    assert only_problem("a: &x [*x]") == "f:1: a.0: expected a value, found an alias of a value that contains it"


def test_aliases_of_aliases_cannot_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "at most 20000 values" in only_problem("\n".join(lines))


@pytest.mark.parametrize("text", ["a: !!python/name:os.system x", "a: !mine {b: 1}", "a: !!binary aGk=", "a: !!int x"])
def test_tags_are_refused(text: str) -> None:
    assert only_problem(text).startswith("f:1: a: expected a plain value")


def test_tabs_are_named() -> None:
    assert only_problem("a:\n\tb: 1").endswith("indent with spaces, not tabs")
    assert only_problem("a:\n\tb: 1").startswith("f:2: expected YAML, found a syntax error")


def test_two_documents_are_refused() -> None:
    assert only_problem("a: 1\n---\nb: 2\n").endswith("one file holds one run: remove the `---`")


def test_a_colon_in_plain_text_is_named() -> None:
    assert "in quotes" in only_problem("a: b: c")


def test_a_version_that_changes_the_numbers_is_refused() -> None:
    assert only_problem("%YAML 1.1\n---\na: on\n").startswith("f:1: expected YAML 1.2, found `%YAML 1.1`")
    assert parse_yaml("%YAML 1.2\n---\na: on\n", "f").value == {"a": "on"}


def test_a_control_character_is_one_problem() -> None:
    assert only_problem("a: \x00") == "f: expected YAML text, found a character that YAML does not allow"


def test_an_unclosed_list_names_its_line() -> None:
    assert only_problem("a: 1\nb: [1, 2\n").startswith("f:3: expected YAML")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_an_empty_text_is_no_value(text: str) -> None:
    parsed = parse_yaml(text, "f")
    assert parsed.value is None
    assert parsed.problems == []
