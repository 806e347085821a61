"""From rows to curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Chosen, Columns
from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.readers.table import Table, finish


def curve_of(*rows: tuple[object, object], step: str | None = "step") -> Curve:
    table = Table(Chosen(step, "loss", None), Columns(), Path("run.csv"))
    for index, (at, loss) in enumerate(rows):
        table.add({"step": at, "loss": loss}, f"row {index}")
    return table.curve()


def test_half_of_the_rows_may_be_bad_and_not_more() -> None:
    assert len(curve_of((1, 3), (2, "x")).points) == 1
    with pytest.raises(ConfigError, match="row 1"):
        curve_of((1, 3), (2, "x"), (3, "y"))


def test_a_row_without_a_loss_is_a_good_one() -> None:
    assert len(curve_of((1, 3), (1, None), (2, "x"), (3, "y")).points) == 1


def test_rows_with_the_newest_first_are_turned_round() -> None:
    curve = curve_of(*((step, step / 10) for step in reversed(range(40))))
    assert [point.step for point in curve.points] == list(range(40))
    assert curve.notes == ("rows were not in order of their steps: sorted",)


def test_a_second_run_is_told() -> None:
    curve = curve_of(*((step, 10.0 - step / 10) for step in (*range(40), *range(40))))
    assert len(curve.points) == 80
    assert curve.notes == ("a second run begins here: step 0 after step 39",)


def test_without_a_point_there_is_no_curve() -> None:
    with pytest.raises(ConfigError, match="no row with a loss"):
        finish("x", [])


def test_of_repeated_steps_the_last_counts() -> None:
    curve = finish(Path("a/run.csv.gz"), [Point(1, 3.0), Point(1, 4.0)])
    assert (curve.name, [point.loss for point in curve.points]) == ("run", [4.0])
