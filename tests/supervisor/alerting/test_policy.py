"""Which events a person is told of, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from stormsail.platform.alerts.alert import Alert, Level
from stormsail.platform.journal_events import Event
from stormsail.supervisor.alerting.policy import ALERTING, alert_for, for_level, trial_alert, unsettled


def event(what: str, number: int = 7, step: int | None = 57, /, **data: Any) -> Event:
    return Event(number, 1000.0 + number, what, 1, step, 1, data)


def alert(what: str, /, **data: Any) -> Alert:
    made = alert_for(event(what, **data), [], run="quick")
    assert made is not None
    return made


DATA: dict[str, dict[str, Any]] = {
    "ladder.decided": {"kind": "spike", "tier": "resume", "action": "tier 1", "reason": "z 14"},
    "ladder.shadowed": {"kind": "spike", "error": "z 14", "action": "tier 1, resume from step 50"},
    "hang.shadowed": {"reason": "rank 1 is stopped"},
    "hang.suspected": {"reason": "rank 1 has been in phase step"},
    "checkpoint.alert": {"missed": 3, "why": "no space"},
    "checkpoint.corrupt": {"generation": 1, "problem": "a frame is damaged"},
    "store.away": {"for_s": 16.0, "why": "nobody answers"},
    "store.back": {"for_s": 60.0},
    "throughput.collapsed": {"tokens_per_s": 10.0, "usual_tokens_per_s": 100.0},
    "throughput.recovered": {"tokens_per_s": 100.0, "usual_tokens_per_s": 100.0},
    "hardware.suspected": {"ranks": [3], "why": "step 7 was computed wrongly", "todo": "test the node"},
    "rank.slow": {"rank": 1, "host": "node-a", "ratio": 1.8},
    "run.exhausted": {"reason": "every tier was tried"},
    "run.failed": {"error": "no space left"},
    "episode.closed": {"episode": 1},
    "run.finished": {},
    "run.stopped": {"reason": "by hand"},
}


@pytest.mark.parametrize("kind", sorted(ALERTING))
def test_every_alert_says_all_that_a_person_needs(kind: str) -> None:
    made = alert(kind, **DATA[kind])
    assert all((made.title, made.happened, made.done, made.todo))
    assert made.look.startswith("stormsail ")
    assert "quick" in made.look
    assert "docs/runbook.md" in made.look
    assert made.about == (7,)


def test_an_incident_is_told_with_its_cause_and_its_repair() -> None:
    fault = event("fault.detected", 6, kind="process", error="rank 1 died without a word")
    decided = event("ladder.decided", 7, kind="process", tier="resume", action="tier 1", reason="a process was lost")
    made = alert_for(decided, [event("ladder.decided", 3), fault, event("hang.cleared", 6)], run="quick")
    assert made is not None
    assert made.title == "a worker was lost: tier 1 of the ladder"
    assert made.happened == "rank 1 died without a word"
    assert made.level is Level.WARNING


def test_the_kind_of_trouble_is_told_with_the_incident_that_it_belongs_to() -> None:
    fault = event("fault.detected", 5, kind="spike", error="z 14")
    made = event("diagnosis.made", 6, cause="toxic_data", confidence=0.6)
    decided = event("ladder.decided", 7, **DATA["ladder.decided"])
    told = alert_for(decided, [fault, made], run="quick")
    assert told is not None
    assert told.happened == "z 14; diagnosis: likely toxic data (60% sure)"
    later = alert_for(decided, [made, event("ladder.shadowed", 7), fault], run="quick")
    assert later is not None
    assert later.happened == "z 14"
    nobody = alert_for(decided, [fault, event("diagnosis.made", 6, cause="unknown", confidence=0.0)], run="quick")
    assert nobody is not None
    assert nobody.happened == "z 14"
    left = alert("ladder.shadowed", **DATA["ladder.shadowed"], diagnosis="likely numerics (60% sure)")
    assert left.happened == "z 14; diagnosis: likely numerics (60% sure)"


def test_what_ends_the_run_is_told_once_and_needs_a_person() -> None:
    assert alert_for(event("ladder.decided", kind="spike", tier="exhausted", stop_exit_code=4), [], run="q") is None
    assert alert("run.exhausted", reason="all tried").level is Level.PAGE
    assert alert("run.failed", error="no space").level is Level.PAGE


def test_a_run_that_stops_without_a_repair_does_not_speak_of_repairs() -> None:
    made = alert("run.exhausted", reason="loss spike: z 14", why="ladder.on_anomaly is `stop`", tried=False)
    assert made.title == "the run has stopped for a person"
    assert made.done.startswith("no repair: ladder.on_anomaly is `stop`")
    assert alert("run.exhausted", reason="r", why="every tier was tried", tried=True) == alert(
        "run.exhausted", reason="r"
    )


@pytest.mark.parametrize(
    ("what", "title", "advice"),
    [
        ("loss", "non-finite loss", "samples"),
        ("gradient", "non-finite gradient", "layer and rank"),
        ("state", "weights or moments are not finite", "memory"),
        ("an older journal", "non-finite numbers", "layer and rank"),
    ],
)
def test_what_was_not_finite_decides_title_and_advice(what: str, title: str, advice: str) -> None:
    data = {"kind": "nonfinite", "error": "three in a row", "evidence": {"what": what}}
    decided = event("ladder.decided", **DATA["ladder.decided"] | {"kind": "nonfinite"})
    told = alert_for(decided, [event("fault.detected", 6, **data)], run="quick")
    left = alert("ladder.shadowed", **DATA["ladder.shadowed"] | data)
    assert told is not None
    assert told.title == f"{title}: tier 1 of the ladder"
    assert left.title == f"{title}: nothing is done in shadow mode"
    assert advice in told.todo


def test_a_kind_of_fault_that_is_new_is_told_all_the_same() -> None:
    made = alert("ladder.decided", kind="divergence", tier="rollback", action="tier 2", reason="drift")
    assert made.title.endswith("tier 2 of the ladder")


@pytest.mark.parametrize("kind", ["checkpoint.committed", "alert.sent", "drill.fired", "no.such.kind"])
def test_daily_life_is_no_alert(kind: str) -> None:
    assert alert_for(event(kind), [], run="quick") is None


def test_levels_below_the_least_are_left_out() -> None:
    warning = alert("hang.suspected", reason="r")
    assert for_level(warning, Level.WARNING) is warning
    assert for_level(warning, Level.PAGE) is None
    assert for_level(None, Level.INFO) is None


def test_what_an_earlier_supervisor_owed_is_told_to_whom_it_is_owed() -> None:
    events = [
        event("hang.suspected", 1, reason="r"),
        event("checkpoint.alert", 2, missed=3, why="w"),
        event("alert.sent", 3, channel="slack", about=[1, 2]),
        event("alert.failed", 4, channel="email", about=[1], why="refused"),
        event("run.stopped", 5, reason="by hand"),
    ]
    owed = unsettled(events, ("slack", "email"), run="q", oldest_s=0.0)
    assert [(alert.about, channels) for alert, channels in owed] == [((2,), ("email",)), ((5,), ("slack", "email"))]
    assert unsettled(events, ("slack",), run="q", oldest_s=1006.0) == []


def test_the_trial_says_that_it_is_one() -> None:
    assert "test" in trial_alert("quick", time_s=1.0).title
