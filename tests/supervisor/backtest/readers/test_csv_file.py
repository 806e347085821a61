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


@pytest.mark.parametrize("row", ["2,oops", ",3", "1e999,3"])
def test_a_bad_row_costs_itself_and_is_named(tmp_path: Path, row: str) -> None:
    curve = read(tmp_path, f"step,loss\n1,3\n{row}\n4,3\n")
    assert [point.step for point in curve.points] == [1, 4]
    assert any("1 rows cannot be read" in note and "run.csv, line 3" in note for note in curve.notes)


def test_mostly_bad_rows_are_refused_by_the_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.csv, line 3: a cell is no number"):
        read(tmp_path, "step,loss\n1,3\n2,oops\n3,oops\n")
    with pytest.raises(ConfigError, match="has no step"):
        read(tmp_path, "step,loss\n,3\n")


def test_a_header_that_a_restarted_job_wrote_again_is_no_row(tmp_path: Path) -> None:
    curve = read(tmp_path, "step,loss\n1,3\n2,2.9\nstep,loss\n2,2.8\n3,2.7\n")
    assert ([point.step for point in curve.points], len(curve.notes)) == ([1, 2, 3], 1)


@pytest.mark.parametrize("tail", ["12,3.", "12,3.\0\0\0", "12,3.1,0.5\n\0\0"])
def test_a_file_that_was_cut_off_is_read_to_there(tmp_path: Path, tail: str) -> None:
    curve = read(tmp_path, "step,loss,grad_norm\n1,3,0.5\n2,3,0.5\n" + tail)
    assert [point.step for point in curve.points][:2] == [1, 2]
    assert 3.0 in {point.loss for point in curve.points[-1:]} or curve.points[-1].loss == 3.1
    assert "ends in the middle of a line: the job was killed there" in curve.notes


def test_numbers_are_read_as_people_and_spreadsheets_write_them(tmp_path: Path) -> None:
    assert read(tmp_path, 'step,loss\n"1,000",3\n').points[0].step == 1000
    assert read(tmp_path, "step;loss\n7;3,125\n").points[0].loss == 3.125


def test_decimal_commas_between_commas_are_pointed_out(tmp_path: Path) -> None:
    assert any("decimal commas" in note for note in read(tmp_path, "step,loss\n1,3,25\n2,3,125\n").notes)


def test_a_field_that_is_too_long_costs_its_row(tmp_path: Path) -> None:
    curve = read(tmp_path, f"step,loss\n1,3\n2,{'x' * 140_000}\n3,3\n4,3\n")
    assert [point.step for point in curve.points] == [1, 3, 4]
    with pytest.raises(ConfigError, match="header"):
        read(tmp_path, "x" * 140_000)


def test_what_is_passed_over_or_cut_is_told(tmp_path: Path) -> None:
    curve = read(tmp_path, "step,loss,grad_norm\n0.5,3,1\n1.5,,1\n2,3,1\n")
    assert any("1 rows have a gradient norm and no loss" in note for note in curve.notes)
    assert any("1 steps are fractions" in note for note in curve.notes)


def test_a_table_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no row with a loss"):
        read(tmp_path, "step,loss\n")
