"""The picture of a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stormsail.platform.runs import RunPlace
from stormsail.supervisor.picture import draw, final_line
from stormsail.supervisor.reading import read_run
from stormsail.supervisor.report.build import build_report


def test_the_final_line_is_what_the_run_went_on_from() -> None:
    rows = [{"step": step, "pass": 1} for step in range(6)] + [{"step": step, "pass": 2} for step in (3, 4)]
    assert [(row["step"], row["pass"]) for row in final_line(rows).values()] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
    ]


@pytest.mark.filterwarnings("ignore")  # matplotlib's own imports
class TestDrawing:
    def test_a_run_with_a_spike_becomes_the_same_svg_each_time(self, past: RunPlace, tmp_path: Path) -> None:
        run = read_run(past)
        report = build_report(run.events, run.rows)
        for name in ("one.svg", "two.svg"):
            draw(report, run.rows, tmp_path / name)
        assert (tmp_path / "one.svg").read_text().startswith("<?xml")
        assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()

    def test_a_run_that_diverged_can_be_drawn_too(self, past: RunPlace, tmp_path: Path) -> None:
        run = read_run(past)
        rows = [*run.rows[:5], {**run.rows[5], "loss": math.nan}]
        draw(build_report(run.events, rows), rows, tmp_path / "run.png")
        assert (tmp_path / "run.png").stat().st_size > 1000
