"""Typed access to events and rows."""

from __future__ import annotations

import math

import pytest
from tests.support.tape import TapedEvent

from stormsail.supervisor.report.fields import read_rows, real, step_of, table, tables, text, whole


def test_rows_come_in_the_order_of_generations_and_steps() -> None:
    rows = read_rows([{"generation": 2, "step": 0}, {"generation": 1, "step": 1}, {"generation": 1, "step": 0}])
    assert [(row.generation, row.step) for row in rows] == [(1, 0), (1, 1), (2, 0)]


def test_a_row_that_was_said_twice_counts_once() -> None:
    assert len(read_rows([{"generation": 1, "step": 0}, {"generation": 1, "step": 0}])) == 1


def test_a_loss_that_is_no_number_is_none() -> None:
    assert [read_rows([{"loss": loss}])[0].loss for loss in (math.nan, math.inf, None)] == [None, None, None]


def test_the_step_of_an_event_is_found_in_either_place() -> None:
    assert step_of(TapedEvent(1, 0.0, "k", 1, 7, 1, {"step": 8})) == 7
    assert step_of(TapedEvent(1, 0.0, "k", 1, None, 1, {"step": 8})) == 8


@pytest.mark.parametrize("value", [True, "3", 1.5, None])
def test_only_whole_numbers_are_whole(value: object) -> None:
    assert whole({"a": value}, "a") is None


@pytest.mark.parametrize("value", [True, "3", math.nan, None])
def test_only_finite_numbers_are_real(value: object) -> None:
    assert real({"a": value}, "a") is None


def test_what_is_there_is_found_and_what_is_not_is_empty() -> None:
    data = {"w": 3, "t": "x", "o": {"k": 1}, "l": [{"k": 1}, 5]}
    assert (whole(data, "w"), real(data, "w"), text(data, "t")) == (3, 3.0, "x")
    assert (table(data, "o"), tables(data, "l")) == ({"k": 1}, [{"k": 1}])
    assert (text(data, "w"), table(data, "w"), tables(data, "w")) == ("", None, [])
