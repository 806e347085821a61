"""JSON lines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.readers.jsonl_file import read_jsonl


def read(tmp_path: Path, text: str, columns: Columns | None = None) -> Curve:
    path = tmp_path / "run.jsonl"
    path.write_text(text, encoding="utf-8")
    return read_jsonl(path, columns or Columns())


def test_rows_of_training_and_evaluation_are_told_apart(tmp_path: Path) -> None:
    curve = read(tmp_path, '{"step": 1, "loss": 3.0}\n\n{"step": 1, "val_loss": 2.9}\n{"step": 2, "loss": 2.5}\n')
    assert [(point.step, point.loss) for point in curve.points] == [(1, 3.0), (2, 2.5)]


def test_nested_objects_are_taken_apart(tmp_path: Path) -> None:
    curve = read(tmp_path, '{"step": 3, "train": {"loss": 2.0, "grad_norm": 0.4}}\n')
    assert (curve.points[0].loss, curve.points[0].grad_norm) == (2.0, 0.4)


def test_nan_is_read_in_every_spelling(tmp_path: Path) -> None:
    curve = read(tmp_path, '{"step":1,"loss":NaN}\n{"step":2,"loss":"nan"}\n{"step":3,"loss":{"$float":"nan"}}\n')
    assert len(curve.points) == 3
    assert all(math.isnan(point.loss) for point in curve.points)


def test_a_trainers_state_is_read_by_its_history(tmp_path: Path) -> None:
    state = {"epoch": 1, "log_history": [{"step": 10, "loss": 3.0, "grad_norm": 1.0}, {"step": 10, "eval_loss": 3}]}
    assert [point.step for point in read(tmp_path, json.dumps(state, indent=1)).points] == [10]


def test_a_list_of_rows_is_read(tmp_path: Path) -> None:
    assert len(read(tmp_path, '[{"step": 1, "loss": 3}, {"step": 2, "loss": 2}]').points) == 2


GOOD = "".join(f'{{"step": {step}, "loss": 3}}\n' for step in range(5))


@pytest.mark.parametrize("tail", ['{"step": 5, "lo', '{"step": 5, "lo\n', '{"step": 5, "lo\0\0\0', "\0\0\0\0"])
def test_a_file_that_was_cut_off_is_read_to_there(tmp_path: Path, tail: str) -> None:
    curve = read(tmp_path, GOOD + tail)
    assert [point.step for point in curve.points] == [0, 1, 2, 3, 4]
    assert curve.notes == ("ends in the middle of a line: the job was killed there",)


def test_a_broken_line_costs_itself_and_is_named(tmp_path: Path) -> None:
    curve = read(tmp_path, 'Traceback\n{"step": -1, "loss": 3}\n' + GOOD)
    assert len(curve.points) == 6
    assert any("1 rows cannot be read" in note and "run.jsonl, line 1" in note for note in curve.notes)


def test_zeros_before_a_line_do_no_harm(tmp_path: Path) -> None:
    assert len(read(tmp_path, GOOD + '\0\0{"step": 5, "loss": 3}\n').points) == 6


def test_mostly_broken_lines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.jsonl, line 2: this line is no JSON"):
        read(tmp_path, '{"step": 1, "loss": 3}\na\nb\nc\n')
    with pytest.raises(ConfigError, match=r"run\.jsonl, line 1: this line is no JSON"):
        read(tmp_path, "hello\n")


def test_what_no_float_holds_is_infinite(tmp_path: Path) -> None:
    curve = read(tmp_path, GOOD + f'{{"step": 5, "loss": {10**400}}}\n{{"step": {10**400}, "loss": 3}}\n')
    assert curve.points[-1].loss == math.inf
    assert any("has no step" in note for note in curve.notes)


def test_the_metric_can_be_chosen(tmp_path: Path) -> None:
    assert read(tmp_path, '{"s": 4, "a/ce": 1.5, "loss": 9}\n', Columns("s", "a/ce")).points[0].loss == 1.5
