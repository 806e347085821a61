"""Presets by name."""

from __future__ import annotations

import pytest
from tests.support.rows import after, calm, findings

from stormsail.platform.errors import ConfigError
from stormsail.workers.detect.rules.oscillation import Oscillation
from stormsail.workers.detect.rules.presets import PRESETS, preset, with_data_period
from stormsail.workers.detect.rules.row import Level


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_has_each_rule_once(name: str) -> None:
    names = [rule.name for rule in preset(name)]
    assert names
    assert len(names) == len(set(names))


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'default'"):
        preset("defaults")


def incidents(name: str, rise: float) -> int:
    rows = calm(300)
    rows += after(rows, *[(3.0 + rise, 0.3)] * 40)
    said = [one for rule in preset(name) for one in findings(rule, rows).values()]
    return sum(one.level is Level.INCIDENT for one in said)


def test_sensitive_sees_more_than_default_and_default_more_than_quiet() -> None:
    assert incidents("sensitive", 0.165)
    assert not incidents("default", 0.165)
    assert incidents("default", 0.3)
    assert not incidents("quiet", 0.2)
    assert incidents("quiet", 1.5)


def test_the_period_of_the_data_reaches_the_rule_that_needs_it() -> None:
    (told,) = [rule for rule in with_data_period(preset("default"), 46) if isinstance(rule, Oscillation)]
    assert told.data_period == 46
