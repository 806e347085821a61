"""Tables."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.readers.csv_file import read_csv


def read(tmp_path: Path, text: str, columns: Columns | None = None) -> Curve:
    path = tmp_path / "run.csv"
    path.write_text(text, encoding="utf-8")
    return read_csv(path, columns or Columns())


def test_step_loss_and_norm_in_any_order(tmp_path: Path) -> None:
    curve = read(tmp_path, "grad_norm,loss,step\n0.5,3.25,7\n,nan,8\n")
    assert curve.name == "run"
    assert [(point.step, point.grad_norm) for point in curve.points] == [(7, 0.5), (8, None)]
    assert curve.points[0].loss == 3.25
    assert math.isnan(curve.points[1].loss)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_found(tmp_path: Path, separator: str) -> None:
    text = "step,loss\n1,3.5\n".replace(",", separator)
    assert read(tmp_path, text).points[0].loss == 3.5


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufeffstep,loss\n5,3\n").points[0].step == 5


def test_rows_without_a_loss_are_passed_over(tmp_path: Path) -> None:
    assert [point.step for point in read(tmp_path, "step,loss,val_loss\n1,3,\n2,,2.9\n3,2.8,\n").points] == [1, 3]


def test_without_steps_rows_are_counted(tmp_path: Path) -> None:
    curve = read(tmp_path, "loss\n3\n2\n")
    assert [point.step for point in curve.points] == [0, 1]
    assert any("no step column" in note for note in curve.notes)


def test_repeated_steps_are_told(tmp_path: Path) -> None:
    curve = read(tmp_path, "step,loss\n1,3\n1,4\n2,3\n")
    assert [point.loss for point in curve.points] == [4, 3]
    assert any("1 rows repeat" in note for note in curve.notes)


def test_a_cell_that_is_no_number_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.csv, line 3"):
        read(tmp_path, "step,loss\n1,3\n2,oops\n")


def test_a_loss_without_its_step_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no step"):
        read(tmp_path, "step,loss\n,3\n")


def test_a_table_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no row with a loss"):
        read(tmp_path, "step,loss\n")
