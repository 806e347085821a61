"""A back-test from request to outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.session import Outcome, Request, backtest
from stormsail.supervisor.backtest.synthetic import Trouble, healthy, troubled
from stormsail.workers.detect.rules.row import Level


def write(curve: Curve, path: Path) -> str:
    lines = [f"{point.step},{point.loss!r},{point.grad_norm!r}" for point in curve.points]
    path.write_text("\n".join(["step,loss,grad_norm", *lines]))
    return str(path)


def incidents(outcome: Outcome) -> list[int]:
    return [alarm.step for alarm in outcome.judged[0].alarms if alarm.level is Level.INCIDENT]


@pytest.fixture
def spike(tmp_path: Path) -> str:
    return write(troubled(2, 700, Trouble("spike", 600, 2.0, 60.0))[0], tmp_path / "spike.csv")


def test_the_first_preset_gives_the_alarms_and_all_are_scored(spike: str, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("series,start,end,action_expected\nspike,600,640,rollback\n")
    outcome = backtest(Request((spike,), presets=("default", "article"), labels=labels))
    assert incidents(outcome)[0] in range(600, 605)
    totals = {row.preset: row.score.found for row in outcome.scores if row.detector is None}
    assert totals.keys() == {"default", "article"}
    assert totals["default"] == 1
    assert {row.detector for row in outcome.scores if row.preset == "default"} >= {None, "spike", "explosion"}


def test_single_rules_can_be_run_instead(spike: str) -> None:
    outcome = backtest(Request((spike,), rules=("olmo-skipstep",)))
    assert {alarm.detector for alarm in outcome.judged[0].alarms} == {"olmo-skipstep"}


def test_a_continuation_is_judged_by_what_went_before(tmp_path: Path) -> None:
    curve, _ = troubled(4, 700, Trouble("resume_fault", 600, 0.9, 10.0))
    first = write(Curve("a", "a", curve.points[:600]), tmp_path / "a.csv")
    second = write(Curve("b", "b", curve.points[600:]), tmp_path / "b.csv")
    assert incidents(backtest(Request((second,), continues=first)))[0] in (600, 601)


def test_one_file_goes_on_from_another_not_two(spike: str) -> None:
    with pytest.raises(ConfigError, match="there are 2"):
        backtest(Request((spike, spike), continues=spike))


def test_a_part_that_follows_another_is_pointed_out(tmp_path: Path) -> None:
    curve = healthy(2, 400)
    write(Curve("a", "a", curve.points[:200]), tmp_path / "a.csv")
    write(Curve("b", "b", curve.points[200:]), tmp_path / "b.csv")
    assert any("--continues" in remark for remark in backtest(Request((str(tmp_path),))).remarks)


def test_curves_without_labels_are_named_and_not_scored(spike: str, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("series,start,end,action_expected\nother,600,640,rollback\n")
    outcome = backtest(Request((spike,), labels=labels))
    assert outcome.scores[0].score.events == 0
    assert any("no labels for spike" in remark for remark in outcome.remarks)
    assert "labels for other: no such curve, not scored" in outcome.remarks


def test_a_wrong_preset_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="no preset"):
        backtest(Request(("gone.csv",), presets=("best",)))
