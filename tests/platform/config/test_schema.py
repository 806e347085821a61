"""The JSON Schema agrees with the checker, and tells editors what each key is for."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from stormsail.platform.config.schema import config_schema
from stormsail.platform.config.source import parse_yaml
from stormsail.platform.config.starter import starter_yaml

BASE: dict[str, Any] = {"name": "x", "train": {"steps": 100}}


def accepts(values: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(config_schema()).is_valid({**BASE, **values}))


def test_it_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(config_schema())


def test_the_starter_fits_it() -> None:
    assert accepts(parse_yaml(starter_yaml("x", file="f"), "f").value)  # type: ignore[arg-type]  # a mapping


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"storage": "s3://b"},
        {"storage": {"url": "embedded"}},
        {"model": {"args": {"layers": 2}}},
        {"model": {"factory": "m:f", "args": {"anything": 1}}},
        {"data": {"factory": "builtin:tokens", "args": {"path": "~/x"}}},
        {"drill": {"faults": [{"kind": "kill", "step": 3}]}},
        {"optimizer": {"betas": [0.8, 0.9]}},
    ],
    ids=str,
)
def test_what_is_right_fits(values: dict[str, Any]) -> None:
    assert accepts(values)


@pytest.mark.parametrize(
    "values",
    [
        {"chekpoint_every": 3},
        {"seed": "1"},
        {"train": {"steps": 0}},
        {"train": {}},
        {"lr": {"floorr": 1}},
        {"model": {"args": {"layer": 2}}},
        {"model": {"factory": "builtin:transformer", "args": {"layers": 0}}},
        {"data": {"factory": "builtin:tokens", "args": {}}},
        {"drill": {"faults": [{"kind": "kil", "step": 3}]}},
    ],
    ids=str,
)
def test_what_is_wrong_does_not(values: dict[str, Any]) -> None:
    assert not accepts(values)


def test_every_key_has_a_description() -> None:
    schema = config_schema()
    definitions = schema["$defs"]
    for name, section in {"run": schema, **definitions}.items():
        for key, node in section.get("properties", {}).items():
            referred = definitions.get(
                node.get("$ref", node.get("anyOf", [{}])[0].get("$ref", "")).rsplit("/", 1)[-1], {}
            )
            assert node.get("description") or referred.get("description") or "const" in node, f"{name}.{key}"
