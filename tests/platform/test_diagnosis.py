"""A verdict is acted on only where it is sure."""

from __future__ import annotations

import pickle

import pytest

from stormsail.platform.diagnosis import CONFIDENT, Cause, Diagnosis, ReplayPlan, TraceRow, spoken
from stormsail.platform.messages import CheckpointRef, Directive


@pytest.mark.parametrize("cause", list(Cause))
def test_unknown_is_never_confident_and_the_others_are_from_the_limit_on(cause: Cause) -> None:
    assert Diagnosis(cause, CONFIDENT).confident is (cause is not Cause.UNKNOWN)
    assert not Diagnosis(cause, CONFIDENT - 0.01).confident


def test_a_hint_is_spoken_of_as_likely_and_nothing_is_likely_unknown() -> None:
    assert spoken("toxic_data", 0.9) == "toxic data (90% sure)"
    assert spoken("toxic_data", 0.6) == "likely toxic data (60% sure)"
    assert spoken("unknown", 0.0) == "unknown"


def test_a_plan_crosses_the_border_of_a_process() -> None:
    plan = ReplayPlan(CheckpointRef(1, 20), 20, (28, 39), (TraceRow(1, 2.0, 1.0),), (), 30)
    directive = Directive(1, experiment=plan)
    assert pickle.loads(pickle.dumps(directive)) == directive
