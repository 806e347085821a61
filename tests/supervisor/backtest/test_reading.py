"""Files by kind, folders as the curves in them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.reading import is_labels, read_curves, read_labels

CSV = "step,loss\n0,3.0\n1,2.9\n"
LABELS = "series,start,end,action_expected\na,0,1,none\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.csv").write_text(CSV)
    (tmp_path / "a.jsonl").write_text('{"step": 0, "loss": 3.0}\n{"step": 1, "loss": 2.0}\n')
    (tmp_path / "c.log").write_text("iter 0: loss 10.9, time 1ms\niter 10: loss 9.0, time 1ms\n")
    (tmp_path / "labels.csv").write_text(LABELS)
    (tmp_path / "README.md").write_text("no curve")
    return tmp_path


def names(*paths: Path) -> list[str]:
    return [curve.name for curve in read_curves([str(path) for path in paths], Columns()).curves]


def test_a_folder_means_its_curves_and_the_labels_are_none(folder: Path) -> None:
    assert names(folder) == ["a", "b", "c"]


def test_what_a_folder_holds_beside_curves_is_told(folder: Path) -> None:
    (folder / "notes.txt").write_text("hello\n")
    found = read_curves([str(folder)], Columns())
    assert len(found.curves) == 3
    assert len(found.left_out) == 1
    assert "notes.txt" in found.left_out[0]


def test_files_come_in_the_order_in_which_they_were_named(folder: Path) -> None:
    assert names(folder / "b.csv", folder / "a.jsonl") == ["b", "a"]


def test_labels_are_known_by_their_header(folder: Path) -> None:
    assert is_labels(folder / "labels.csv")
    assert not is_labels(folder / "b.csv")
    assert len(read_labels(folder / "labels.csv")) == 1


def test_labels_as_a_curve_are_refused_with_the_option(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--labels"):
        names(folder / "labels.csv")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        names(tmp_path / "gone.csv")
    with pytest.raises(ConfigError, match=r"gone\.csv"):
        read_labels(tmp_path / "gone.csv")


def test_an_empty_folder_is_an_error_that_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no curve in this folder") as caught:
        names(tmp_path)
    assert all(word in caught.value.todo for word in (".csv", ".jsonl", ".log", "event files", "1 folders"))


def test_a_folder_of_runs_gives_each_curve_the_name_of_its_run(tmp_path: Path) -> None:
    for run, files in {"b": ["metrics.csv"], "a": ["metrics.csv"], "c": ["x.csv", "y.csv"], ".git": ["no.csv"]}.items():
        (tmp_path / run).mkdir()
        for file in files:
            (tmp_path / run / file).write_text(CSV)
    (tmp_path / "b" / "config.json").write_text('{"lr": 1}')
    (tmp_path / "labels.csv").write_text(LABELS)
    found = read_curves([str(tmp_path)], Columns())
    assert [curve.name for curve in found.curves] == ["a", "b", "c/x", "c/y"]
    assert found.curves[0].source == str(tmp_path / "a" / "metrics.csv")
    assert "config.json" in found.left_out[0]
    (tmp_path / "own.csv").write_text(CSV)
    assert names(tmp_path) == ["own"]  # a folder with a curve of its own is no folder of runs


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *((name, b"") for name in ("a.csv", "a.tsv", "a.jsonl", "a.json", "a.log", "a.csv.gz", "a.other")),
        ("events.out.tfevents.1", b""),
        ("a.csv", b"\n \n"),
        ("a.log.gz", gzip.compress(b"", mtime=0)),
    ],
)
def test_an_empty_file_of_any_kind_is_said_to_be_empty(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match="the file is empty"):
        names(tmp_path / name)
    with pytest.raises(ConfigError, match="the file is empty" if name != "a.other" else "no curve"):
        names(tmp_path)


def test_of_several_names_one_that_cannot_be_read_is_left_out_with_its_reason(folder: Path) -> None:
    (folder / "empty.csv").write_text("")
    paths = [str(folder / name) for name in ("empty.csv", "b.csv", "gone.csv", "a.jsonl")]
    found = read_curves(paths, Columns())
    assert [curve.name for curve in found.curves] == ["b", "a"]
    assert [reason.split(": ")[1] for reason in found.unread] == ["the file is empty", "there is no such file"]
    with pytest.raises(ConfigError, match="nothing that was named") as caught:
        read_curves([paths[0], paths[2]], Columns())
    assert "the file is empty" in caught.value.todo
    assert "gone.csv" in caught.value.todo


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"step,loss\n\xff\xfe\x00")
    with pytest.raises(ConfigError, match="no text"):
        names(tmp_path / "x.csv")


def test_packed_files_are_read_by_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"step": 0, "loss": 3.0}\n'))
    assert names(tmp_path) == ["a", "b"]


def test_the_content_counts_where_the_ending_says_little(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"step": step, "loss": 3.0}) + "\n" for step in range(3))
    (tmp_path / "a.log").write_text("starting\n" + lines)
    (tmp_path / "b.txt").write_text(CSV)
    (tmp_path / "c.out").write_text("iter 0: loss 10.9, time 1ms\n", encoding="utf-16")
    assert names(tmp_path) == ["a", "b", "c"]
    curve = read_curves([str(tmp_path / "b.txt")], Columns(loss="loss")).curves[0]
    assert [point.loss for point in curve.points] == [3.0, 2.9]


def test_a_log_of_something_else_stays_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("hello, this is a loss\nworld\n")
    with pytest.raises(ConfigError, match="known are nanoGPT"):
        names(tmp_path / "a.log")


def test_a_bad_event_file_leaves_the_rest_of_its_folder(folder: Path) -> None:
    (folder / "events.out.tfevents.1").write_bytes(b"no event file at all")
    found = read_curves([str(folder)], Columns())
    assert len(found.curves) == 3
    assert "checksum" in found.left_out[0]


def test_labels_in_another_encoding_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes((LABELS + "\u00e9,0,1,none\n").encode("latin-1"))
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read_labels(tmp_path / "labels.csv")


def test_a_header_that_no_reader_takes_is_no_file_of_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x" * 140_000)
    assert not is_labels(tmp_path / "a.csv")
