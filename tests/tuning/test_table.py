"""The table, what stands under it, and its CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from stormsail.tuning.answer import Answer
from stormsail.tuning.table import CSV_FIELDS, HEADINGS, control_line, render_answer, standing_line, to_csv


def test_the_table_has_the_published_columns_and_the_verdicts(answer: Answer) -> None:
    text = render_answer(answer)
    head, first, second = text.splitlines()[2:5]
    assert all(heading in head for heading in HEADINGS)
    assert first.split()[:4] == ["0.95", "1", "5.0%", "2"]
    assert first.endswith("winner")
    assert second.endswith("dominated")
    assert "100% (76%-100%)" in first
    assert first.split().count("0%") == 2  # neither diverged nor had an incident, and each says how sure that is
    assert first.split().count("(0%-24%)") == 2
    assert "4 of 4 trials failed, as they must" in text
    assert "optimizer.lr = 0.01" in text
    assert "never proves" in text


def test_a_tame_control_is_named(answer: Answer) -> None:
    tame = replace(answer, control=replace(answer.control, failed=2, failed_on=("w32",)))
    assert control_line(tame).endswith("stable on w48")
    assert standing_line(tame).startswith("void")
    assert "not measured" in control_line(replace(answer, control=replace(answer.control, missing=1)))


def test_an_empty_sweep_still_has_a_table(answer: Answer) -> None:
    empty = replace(answer, rows=(), edges=(), fit=None, handover=None, done=0)
    assert "incomplete" in render_answer(empty)


def test_the_csv_has_one_line_for_each_setting(answer: Answer) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(answer.rows))))
    assert len(rows) == 2
    assert tuple(rows[0]) == CSV_FIELDS
    assert (rows[0]["beta2"], rows[0]["verdict"]) == ("0.95", "winner")
    assert rows[0]["max_logit"] == "1.0"
    assert [rows[0][f"divergence{end}"] for end in ("", "_low")] == ["0.0", "0.0"]
    assert rows[0]["divergence_high"] == rows[0]["incidents_high"]
    assert float(rows[0]["divergence_high"]) == pytest.approx(1 - float(rows[0]["success_low"]))
