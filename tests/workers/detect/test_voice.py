"""When a finding that lasts is said again."""

from __future__ import annotations

from stormsail.workers.detect.rules.row import Level
from stormsail.workers.detect.voice import NEAR_STEPS, Voice, near

WATCH, INCIDENT = Level.WATCH, Level.INCIDENT


def said(findings: list[tuple[int, Level]]) -> list[tuple[int, str]]:
    voice, heard = Voice(), []
    for step, level in findings:
        voice, words = voice.hear(step, level, together=NEAR_STEPS)
        if words:
            heard.append((step, words))
    return heard


def test_a_finding_is_said_when_it_begins_and_again_while_it_lasts() -> None:
    assert said([(step, WATCH) for step in range(120)]) == [(0, "new"), (50, "repeated"), (100, "repeated")]


def test_growing_worse_is_news_and_growing_milder_is_none() -> None:
    assert said([(0, WATCH), (1, INCIDENT), (2, WATCH), (3, INCIDENT)]) == [(0, "new"), (1, "new")]


def test_after_a_calm_time_it_is_news_again() -> None:
    assert said([(0, WATCH), (51, WATCH)]) == [(0, "new"), (51, "new")]


def test_a_restart_ends_what_lasted() -> None:
    voice, _ = Voice().hear(10, WATCH, together=NEAR_STEPS)
    assert voice.hear(11, WATCH, together=NEAR_STEPS, restart=True)[1] == "new"


def test_rows_far_apart_are_near_by_rows() -> None:
    assert (near(1), near(100)) == (50, 200)
