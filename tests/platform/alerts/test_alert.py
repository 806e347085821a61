"""What an alert is and how it reads."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.support.ears import an_alert

from stormsail.platform.alerts.alert import Alert, Level, body, join, subject


def test_a_message_says_what_happened_what_was_done_what_to_do_and_where_to_look() -> None:
    assert body([an_alert()]) == (
        "[warning] quickstart at step 57: loss spike: tier 1 of the ladder\n"
        "What happened: z 14.2\n"
        "What was done: tier 1, resume from step 50\n"
        "What to do: nothing now\n"
        "Look: stormsail report quickstart"
    )
    assert subject([an_alert()]) == "[warning] quickstart: loss spike: tier 1 of the ladder"


def test_alerts_of_one_key_become_one_with_a_count() -> None:
    waiting: tuple[Alert, ...] = ()
    for number in range(200):
        waiting = join(waiting, an_alert(number, step=number))
    assert len(waiting) == 1
    assert (waiting[0].count, waiting[0].step, waiting[0].about) == (200, 199, tuple(range(200)))
    assert "at step 199 (200 times since step 0)" in body(waiting)
    assert subject(waiting).endswith("(and 199 more)")


def test_runs_and_keys_are_kept_apart_and_the_gravest_comes_first() -> None:
    waiting = join(join((), an_alert(1)), an_alert(2, key="end", level=Level.PAGE))
    assert [alert.count for alert in waiting] == [1, 1]
    assert body(waiting).startswith("[page]")
    assert subject(waiting).startswith("[page] quickstart")


def test_a_joined_alert_is_as_grave_as_its_gravest() -> None:
    waiting = join(join((), an_alert(1, level=Level.PAGE)), an_alert(2))
    assert waiting[0].level is Level.PAGE


def test_a_long_message_is_cut_and_says_so() -> None:
    waiting: tuple[Alert, ...] = ()
    for number in range(15):
        waiting = join(waiting, an_alert(number, key=f"key {number}"))
    assert body(waiting).count("What happened") == 10
    assert "and 5 more: loss spike" in body(waiting)


def test_an_alert_survives_a_line_of_json() -> None:
    alert = an_alert(7, level=Level.PAGE)
    assert Alert.from_json(json.loads(json.dumps(alert.to_json()))) == alert


def test_halves_of_characters_do_not_reach_a_channel() -> None:
    broken = replace(an_alert(), title="lost \ud800", happened="\udcff", look="\udc80")
    assert "lost ?" in subject([broken])
    body([broken]).encode()
