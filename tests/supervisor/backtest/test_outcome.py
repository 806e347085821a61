"""What a back-test says."""

from __future__ import annotations

import math

from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.engine import Alarm
from stormsail.supervisor.backtest.outcome import (
    Judged,
    ScoreRow,
    episodes,
    render,
    render_rules,
    render_scores,
    to_json,
)
from stormsail.supervisor.backtest.scoring import Score
from stormsail.workers.detect.rules.registry import RULES, describe
from stormsail.workers.detect.rules.row import Kind, Level

RUN = Curve("run", "logs/run.csv", tuple(Point(step, 3.0, 0.3) for step in range(100)), ("guessed",))


def alarm(step: int, level: Level = Level.INCIDENT, detector: str = "spike", repeated: bool = False) -> Alarm:
    return Alarm(step, level, Kind.SPIKE, detector, 9.0, "because", repeated)


def test_the_json_has_exactly_the_promised_form() -> None:
    assert to_json([Judged(RUN, (alarm(50),))]) == {
        "files": [
            {
                "file": "logs/run.csv",
                "steps": 100,
                "alarms": [
                    {
                        "step": 50,
                        "level": "incident",
                        "kind": "spike",
                        "detector": "spike",
                        "severity": 9.0,
                        "reason": "because",
                    }
                ],
            }
        ]
    }


def test_scores_are_added_where_there_are_some() -> None:
    made = to_json([], [ScoreRow("default", None, Score(events=1, found=1))])
    rows = made["scores"]
    assert isinstance(rows, list)
    assert rows[0]["preset"] == "default"
    assert rows[0]["recall"] == 1.0


def test_near_incidents_are_one_episode_of_the_first() -> None:
    one = Judged(RUN, (alarm(10), alarm(30, detector="explosion"), alarm(31, Level.WATCH), alarm(95)))
    assert [(made.first.step, made.until, made.detectors) for made in episodes(one)] == [
        (10, 30, ("spike", "explosion")),
        (95, 95, ("spike",)),
    ]


def test_the_text_names_step_kind_and_reason() -> None:
    text = render(Judged(RUN, (alarm(10), alarm(40, repeated=True), alarm(60, Level.WATCH))))
    assert "logs/run.csv: steps 0 to 99 (100 rows)" in text
    assert "note: guessed" in text
    assert "INCIDENT  step 10, until 40: spike (spike)" in text
    assert "because" in text
    assert "watch     step 60" in text


def test_many_watches_are_shortened() -> None:
    text = render(Judged(RUN, tuple(alarm(step, Level.WATCH) for step in range(9))))
    assert "no incident" in text
    assert "and 4 more" in text


def test_calm_is_said_only_of_what_could_be_judged() -> None:
    assert "calm" in render(Judged(RUN, ()))
    short = Curve("f", "f.csv", RUN.points[:3])
    assert "too short" in render(Judged(short, ()))


def test_a_curve_of_nan_is_described() -> None:
    assert "no finite loss" in render(Judged(Curve("n", "n", (Point(1, math.nan),)), ()))


def test_the_table_of_scores_names_what_was_missed() -> None:
    score = Score(events=2, found=1, latencies=(3,), right=1, false=1, healthy_steps=10000, missed=("run@7",))
    text = render_scores([ScoreRow("default", None, score), ScoreRow("default", "spike", Score())])
    assert "preset default  1/2     3        3    0.50       1      1.00" in text
    assert "not found: run@7" in text


def test_the_list_of_rules_has_units_and_presets() -> None:
    text = render_rules([describe(RULES["spike"])], {"default": ["spike"], "article": []})
    assert "z = 6 robust sigma" in text
    assert "[presets: default]" in text
