"""Rules by name."""

from __future__ import annotations

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.workers.detect.rules.registry import ARTICLE, OURS, PROJECTS, RULES, describe, find


def test_every_name_is_taken_once() -> None:
    assert len(RULES) == len(OURS) + len(ARTICLE) + len(PROJECTS)


@pytest.mark.parametrize("name", list(RULES))
def test_every_rule_says_what_it_is(name: str) -> None:
    info = describe(RULES[name])
    assert info.name == name
    assert info.unit
    assert info.source
    assert info.summary.endswith(".")
    assert info.thresholds


def test_rules_are_found_by_name_each_once() -> None:
    assert [rule.name for rule in find(["spike", "nonfinite", "spike"])] == ["spike", "nonfinite"]


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'spike'"):
        find(["spikes"])
