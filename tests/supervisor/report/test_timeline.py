"""Every second is put into one class."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.supervisor.report.timeline import CLASSES, Span, classify


def test_what_no_span_covers_is_a_stall() -> None:
    seconds = classify([Span("productive", 2.0, 5.0)], 0.0, 10.0)
    assert (seconds["productive"], seconds["stall"]) == (3.0, 7.0)


def test_of_two_classes_the_first_in_order_wins() -> None:
    seconds = classify([Span("detect", 0.0, 6.0), Span("productive", 2.0, 5.0)], 0.0, 6.0)
    assert (seconds["productive"], seconds["detect"], seconds["stall"]) == (3.0, 3.0, 0.0)


def test_spans_of_one_class_that_overlap_count_once() -> None:
    assert classify([Span("idle", 0.0, 4.0), Span("idle", 2.0, 6.0)], 0.0, 6.0)["idle"] == 6.0


def test_what_lies_outside_does_not_count() -> None:
    assert classify([Span("idle", -5.0, 1.0), Span("load", 9.0, 20.0)], 0.0, 10.0)["load"] == 1.0


def test_a_run_without_length_has_no_seconds() -> None:
    assert sum(classify([Span("idle", 0.0, 1.0)], 5.0, 5.0).values()) == 0.0


@given(
    st.lists(st.builds(Span, kind=st.sampled_from(CLASSES), start_s=st.floats(-5, 60), end_s=st.floats(-5, 60))),
    st.floats(0, 20),
    st.floats(20, 50),
)
def test_the_classes_always_add_up_to_the_whole(spans: list[Span], start_s: float, end_s: float) -> None:
    seconds = classify(spans, start_s, end_s)
    assert sum(seconds.values()) == pytest.approx(end_s - start_s)
    assert min(seconds.values()) >= 0.0
