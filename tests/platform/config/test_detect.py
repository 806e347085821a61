"""The detectors' section; that it fits the rules is tested beside them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.detect import DetectSection, NonfiniteSection
from stormsail.platform.config.section import Section


def test_every_threshold_is_the_presets_until_it_is_set() -> None:
    for name, info in DetectSection.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section) and name != "ranks":
            assert all(value is None for _, value in getattr(DetectSection(), name))


def test_every_key_says_what_it_is() -> None:
    for info in DetectSection.model_fields.values():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            assert kind.__doc__
            assert all(inner.description for inner in kind.model_fields.values())
        else:
            assert info.description


@pytest.mark.parametrize(
    "wrong",
    [{"preset": "loud"}, {"on_watch": "panic"}, {"budget": 0.0}, {"sample_every": 0}, {"spike": {"z": -1.0}}],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DetectSection.model_validate(wrong)


@pytest.mark.parametrize(
    ("preset", "keys"),
    [("default", []), ("sensitive", []), ("quiet", []), ("article", ["detect.spike.z", "detect.spike.needed"])],
)
def test_what_the_preset_has_no_rule_for_has_no_effect(preset: str, keys: list[str]) -> None:
    section = DetectSection.model_validate({"preset": preset, "spike": {"z": 5.0, "needed": 2, "of": None}})
    assert list(section.without_effect()) == keys


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, []),
        ({"spike": {"needed": 4, "of": 3}}, ["detect.spike.needed:"]),
        ({"preset": "quiet", "oscillation": {"swing": 0.1}}, ["detect.oscillation.swing"]),
        ({"ranks": {"watch_steps": 3, "incident_steps": 2}}, ["detect.ranks.incident_steps"]),
        ({"ranks": {"watch_steps": 3, "incident_steps": 0}}, []),
        ({"throughput": {"collapsed": 0.8, "recovered": 0.8}}, ["detect.throughput.collapsed"]),
    ],
)
def test_what_cannot_all_be_meant_names_its_key(keys: dict[str, object], named: list[str]) -> None:
    assert [line.split()[0] for line in DetectSection.model_validate(keys).contradictions()] == named


@pytest.mark.parametrize("wrong", [{"patience": 0}, {"share": 0.0}, {"share": 1.1}])
def test_dropped_updates_are_too_many_at_some_point(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NonfiniteSection.model_validate(wrong)
