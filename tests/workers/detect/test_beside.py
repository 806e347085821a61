"""Limits of what is watched beside the rules: a key for each, the preset's until it is set."""

from __future__ import annotations

import re
from dataclasses import asdict, fields

import pytest

from stormsail.platform.config.detect import DetectSection
from stormsail.workers.detect.beside import BESIDE, Beside
from stormsail.workers.detect.rules.presets import PRESETS

PARTS = [part.name for part in fields(Beside)]


def section_of(part: str) -> str:
    return "forecast_limits" if part == "forecast" else part  # `forecast` turns it on and off


@pytest.mark.parametrize("part", PARTS)
def test_each_limit_is_a_key_with_its_unit_and_nothing_else_is(part: str) -> None:
    section = getattr(DetectSection(), section_of(part))
    described = {name: info.description or "" for name, info in type(section).model_fields.items()}
    assert described.keys() == asdict(getattr(Beside(), part)).keys()
    assert all(re.search(r"\(.+\)$", text) or text.endswith("(steps)") for text in described.values())


def test_every_preset_says_something_of_each() -> None:
    assert BESIDE.keys() == PRESETS.keys()
    for part in PARTS:
        calm, loud, quiet = (getattr(BESIDE[name], part) for name in ("default", "sensitive", "quiet"))
        assert calm not in (loud, quiet)


@pytest.mark.parametrize("preset", PRESETS)
def test_without_a_word_they_are_those_of_the_preset(preset: str) -> None:
    assert Beside.of(DetectSection.model_validate({"preset": preset})) == BESIDE[preset]


@pytest.mark.parametrize("part", PARTS)
def test_what_the_configuration_sets_goes_over_the_preset(part: str) -> None:
    name = fields(getattr(Beside(), part))[0].name
    told = asdict(getattr(BESIDE["quiet"], part))[name] * 0.9
    found = Beside.of(DetectSection.model_validate({"preset": "quiet", section_of(part): {name: told}}))
    assert asdict(found)[part] == {**asdict(getattr(BESIDE["quiet"], part)), name: told}
    assert {other: getattr(found, other) for other in PARTS if other != part} == {
        other: getattr(BESIDE["quiet"], other) for other in PARTS if other != part
    }
