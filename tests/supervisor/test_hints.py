"""What the rows alone are worth: never a confident verdict, and no cause where others look alike."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scripted_run import LAST, ONSET, calm, ill, trace_of

from stormsail.platform.diagnosis import Cause, Trace, TraceRow
from stormsail.supervisor.case import open_case
from stormsail.supervisor.classify import classify
from stormsail.supervisor.hints import hint


def test_without_a_replay_no_verdict_is_confident() -> None:
    trace = trace_of(lambda _now, step: ill(step) if step >= ONSET else calm(step), 20, LAST)
    found = classify(open_case(trace, ONSET))
    assert found.cause is Cause.DATA
    assert not found.confident


NUMBERS = st.one_of(st.floats(0.5, 1.5), st.sampled_from((0.0, 100.0, math.inf, math.nan)))
GROUPS = st.sampled_from(((), (1.0,) * 5, (0.0, math.nan, 100.0, math.inf, 1.0)))  # as many as calm rows have


@settings(max_examples=50)
@given(
    st.lists(st.builds(TraceRow, st.just(0), NUMBERS, NUMBERS, GROUPS, NUMBERS, st.integers(0, 1)), max_size=30),
    st.integers(0, 5),
)
def test_whatever_the_rows_are_a_hint_breaks_nothing_and_is_never_confident(
    rows: list[TraceRow], ill_rows: int
) -> None:
    """It is asked for at every incident, between the fault and its repair."""
    steady = [calm(step) for step in range(40)]
    traced = (*steady, *(replace(row, step=40 + index) for index, row in enumerate(rows)))
    names = ("embed", "blocks.0", "blocks.1", "blocks.2", "head")
    assert not classify(open_case(Trace(names, traced), traced[-1].step - ill_rows)).confident
    assert not classify(open_case(Trace(names, traced[40:]), None)).confident


@pytest.mark.parametrize(
    ("changes", "cause", "seen"),
    [
        ({}, Cause.UNKNOWN, "the loss of a batch stands out: that has several causes"),
        ({"nonfinite": 5}, Cause.NUMERICS, "non-finite values"),
        ({"grad_norm": 200.0}, Cause.EXPLOSION, "the gradient norm rose to"),
    ],
)
def test_a_hint_names_a_cause_only_where_no_other_one_looks_alike(
    changes: dict[str, object], cause: Cause, seen: str
) -> None:
    case = open_case(
        trace_of(lambda _now, step: ill(step, **changes) if step >= ONSET else calm(step), 20, LAST), ONSET
    )
    assert case is not None
    found = hint(case)
    assert found.cause is cause
    assert found.evidence[0].startswith(seen)
    assert found.evidence[-1] == "from the rows alone, without a replay"
