"""What all rules share: states that go through JSON, thresholds with units, bounded memory, no verdict from NaN."""

from __future__ import annotations

import json
import math
import pickle

import pytest
from tests.support.rows import after, calm, findings

from stormsail.platform.errors import CheckpointError
from stormsail.workers.detect.rules.registry import RULES, AnyRule
from stormsail.workers.detect.rules.row import Row
from stormsail.workers.detect.rules.rule import Running

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))

TROUBLE = ((5.0, 9.0), (6.0, 20.0), (math.nan, math.nan), (3.0, math.inf), (3.1, None), (0.0, 0.0), (4.0, 1e300))


@every_rule
def test_a_state_that_went_through_json_judges_on_as_if_nothing_had_happened(rule: AnyRule) -> None:
    rows = calm(150)
    straight, stopped = Running(rule), Running(rule)
    for row in rows:
        straight.observe(row)
        stopped.observe(row)
    resumed = Running(rule)
    resumed.load(json.loads(json.dumps(stopped.dump())))
    assert resumed.state == straight.state
    for row in after(rows, *TROUBLE):
        assert resumed.observe(row) == straight.observe(row)


@every_rule
def test_a_state_of_something_else_is_refused(rule: AnyRule) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        rule.load("nothing")


@every_rule
def test_the_same_rows_give_the_same_findings(rule: AnyRule) -> None:
    rows = calm(130)
    rows += after(rows, *TROUBLE)
    first, second = Running(rule), Running(rule)
    assert [first.observe(row) for row in rows] == [second.observe(row) for row in rows]


@every_rule
def test_memory_does_not_grow_with_the_run(rule: AnyRule) -> None:
    running = Running(rule)
    size = 0
    for row in calm(2600, norm=0.3):
        running.observe(row)
        if row.step == 1300:
            size = len(pickle.dumps(running.state))
    assert len(pickle.dumps(running.state)) <= size + 200


@every_rule
def test_every_severity_is_a_finite_number(rule: AnyRule) -> None:
    running = Running(rule)
    rows = calm(130)
    for row in [*rows, *after(rows, *TROUBLE * 5)]:
        finding = running.observe(row)
        assert finding is None or (math.isfinite(finding.severity) and finding.reason)


@every_rule
def test_a_first_row_that_is_no_number_is_survived(rule: AnyRule) -> None:
    running = Running(rule)
    for row in (Row(0, math.nan, math.nan), *calm(130, start=1)):
        running.observe(row)
    json.dumps(running.dump(), allow_nan=False)


@every_rule
def test_every_threshold_has_a_unit_and_a_meaning(rule: AnyRule) -> None:
    thresholds = rule.thresholds()
    assert thresholds
    assert all(one.unit and one.meaning and one.value == getattr(rule, one.name) for one in thresholds)


@every_rule
def test_no_reason_is_longer_than_a_line_whatever_the_loss(rule: AnyRule) -> None:
    rows = calm(150)
    said = findings(rule, rows + after(rows, *[(1e308, 1e308)] * 60))
    assert all(len(finding.reason) < 200 for finding in said.values())
