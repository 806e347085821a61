"""Which events a person is told of, and in which words: what happened, what was done, what to do, where to look; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stormsail.platform.alerts.alert import Alert, Level
from stormsail.platform.diagnosis import Cause, spoken
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import FaultKind, Tier

RUNBOOK = "docs/runbook.md"
_NOTHING = "nothing now"
_NO_DETAILS = "no details"


@dataclass(frozen=True, slots=True)
class Words:
    """An alert without what every alert has.

    Attributes:
        level: How much a person is needed.
        title: In a few words.
        happened: What happened.
        done: What was done.
        todo: What to do.
        command: The command to look with, with `RUN` for the run's name.
        page: Anchor of the runbook.
        key: Alerts of the same key are told together; "": the event's kind.
    """

    level: Level
    title: str
    happened: str
    done: str
    todo: str
    command: str = "stormsail report RUN"
    page: str = ""
    key: str = ""


def alert_for(event: Event, before: Sequence[Event], *, run: str) -> Alert | None:
    """The alert that an event is worth, or None.

    Args:
        event: What happened.
        before: What happened before it, oldest first; the fault that a decision answers is looked up there.
        run: The run's name.
    """
    teller = _TELLERS.get(event.kind)
    words = teller(event, event.data, before) if teller else None
    if words is None:
        return None
    link = f"{RUNBOOK}#{words.page}" if words.page else RUNBOOK
    return Alert(
        key=words.key or event.kind,
        level=words.level,
        run=run,
        step=event.step,
        time_s=event.time_s,
        title=words.title,
        happened=words.happened,
        done=words.done,
        todo=words.todo.replace("RUN", run),
        look=f"{words.command.replace('RUN', run)}  ({link})",
        about=(event.number,),
    )


def unsettled(
    events: Sequence[Event], channels: Sequence[str], *, run: str, oldest_s: float
) -> list[tuple[Alert, tuple[str, ...]]]:
    """Alerts that an earlier supervisor owed, each with the channels that it is still owed to.

    Args:
        events: The whole journal.
        channels: The configured ones.
        run: The run's name.
        oldest_s: Events before this are news no more.
    """
    settled: dict[str, set[int]] = {name: set() for name in channels}
    for event in events:
        if event.kind in ("alert.sent", "alert.failed"):
            data: Mapping[str, Any] = event.data
            settled.setdefault(str(data["channel"]), set()).update(data["about"])
    found = []
    for index, event in enumerate(events):
        owed = tuple(name for name in channels if event.number not in settled[name])
        if owed and event.time_s >= oldest_s and (alert := alert_for(event, events[:index], run=run)) is not None:
            found.append((alert, owed))
    return found


@dataclass(frozen=True, slots=True)
class _Fault:
    title: str
    todo: str
    page: str


_FAULTS: Mapping[str, _Fault] = {
    FaultKind.PROCESS: _Fault(
        "a worker was lost", f"{_NOTHING}; if it is the same host again, take that host out", "lost-process"
    ),
    FaultKind.HANG: _Fault(
        "a rank hung", f"{_NOTHING}; if it is the same rank or place again, read the evidence", "hang"
    ),
    FaultKind.USER_CODE: _Fault("the user's code raised", "read the traceback in the report", "user-code"),
    FaultKind.SPIKE: _Fault("loss spike", f"{_NOTHING}; see whether the loss comes back to its course", "loss-spike"),
    FaultKind.NONFINITE: _Fault("non-finite numbers", f"{_NOTHING}; see which layer and rank were first", "non-finite"),
    FaultKind.RESUME_FAULT: _Fault(
        "a resumed run did not repeat its losses", "compare software, data and threads of both", "resume-fault"
    ),
    FaultKind.DIVERGENCE: _Fault(
        "the loss diverges slowly", "compare learning rate, warm-up and beta2 with the last stable run", "divergence"
    ),
    FaultKind.RANK_OUTLIER: _Fault(
        "one rank's numbers stand out", "test that node; if it is the same one again, take it out", "rank-outlier"
    ),
    FaultKind.DESYNC: _Fault(
        "ranks were about to do different things", "compare software and data of the ranks that are named", "incident"
    ),
}
# What of a step was not finite decides where to look first.
_NONFINITE: Mapping[str, _Fault] = {
    "loss": _Fault(
        "non-finite loss",
        f"{_NOTHING}; if it comes again, look at its samples and the model's own arithmetic",
        "non-finite",
    ),
    "gradient": _Fault(
        "non-finite gradient",
        f"{_NOTHING}; if it comes again, look at layer and rank named first, and the LR",
        "non-finite",
    ),
    "state": _Fault(
        "weights or moments are not finite",
        f"{_NOTHING}; no such update is ever applied, so suspect the optimizer's own arithmetic or a node's memory",
        "non-finite",
    ),
}
_ANY_FAULT = _Fault("an incident", "read the report", "incident")


def _decided(_event: Event, data: Mapping[str, Any], before: Sequence[Event]) -> Words | None:
    """An incident and its repair; what ends the run is told by the event of the end."""
    if data.get("stop_exit_code") is not None:
        return None
    kind = str(data.get("kind") or "incident")
    answered = _answered(before)
    fault = _of(kind, answered)
    tier = Tier(data["tier"]).number if data.get("tier") else 0
    return Words(
        level=Level.WARNING,
        title=f"{fault.title}: tier {tier} of the ladder",
        happened=(str(answered.get("error") or "") or str(data["reason"])) + _diagnosed(before),
        done=str(data["action"]),
        todo=fault.todo,
        page=fault.page,
        key=f"incident.{kind}",
    )


def _shadowed(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    fault = _of(str(data["kind"]), data)
    return Words(
        level=Level.WARNING,
        title=f"{fault.title}: nothing is done in shadow mode",
        happened=(str(data["error"]) or _NO_DETAILS)
        + (f"; diagnosis: {data['diagnosis']}" if data.get("diagnosis") else ""),
        done=f"nothing, because ladder.shadow is on; it would have been: {data['action']}",
        todo="decide yourself: `stormsail stop RUN` keeps the state; without ladder.shadow this is repaired",
        page="shadow-mode",
        key=f"shadow.{data['kind']}",
    )


def _hang_left(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    return Words(
        level=Level.WARNING,
        title="a rank hangs: nothing is done in shadow mode",
        happened=str(data["reason"]),
        done="nothing, because ladder.shadow is on; the attempt would have been ended and resumed",
        todo="decide yourself: `stormsail stop RUN`, or end the process of that rank; the collective's limit ends it later",
        page="shadow-mode",
        key="shadow.hang",
    )


def _of(kind: str, fault: Mapping[str, Any]) -> _Fault:
    if kind == FaultKind.NONFINITE:
        evidence = fault.get("evidence") or {}
        return _NONFINITE.get(str(evidence.get("what")), _FAULTS[kind])
    return _FAULTS.get(kind, _ANY_FAULT)


def _answered(before: Sequence[Event]) -> Mapping[str, Any]:
    """What was noted of the fault that a decision answers; {} where it answers none."""
    for earlier in reversed(before):
        if earlier.kind == "ladder.decided":
            return {}
        if earlier.kind == "fault.detected":
            return earlier.data
    return {}


def _diagnosed(before: Sequence[Event]) -> str:
    """What the incident was found to be, or what it is likely to be; "" where nobody could tell."""
    for earlier in reversed(before):
        if earlier.kind in ("ladder.decided", "ladder.shadowed"):
            return ""
        if earlier.kind == "diagnosis.made":
            data: Mapping[str, Any] = earlier.data
            known = data["cause"] != Cause.UNKNOWN
            return f"; diagnosis: {spoken(data['cause'], data['confidence'])}" if known else ""
    return ""


def _suspected(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    return Words(
        level=Level.WARNING,
        title="a rank does not move",
        happened=str(data["reason"]),
        done="stacks of all ranks are being taken; if nothing moves then, the attempt is ended and resumed",
        todo=_NOTHING,
        command="stormsail events RUN",
        page="hang",
    )


def _missed(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    return Words(
        level=Level.WARNING,
        title=f"{data['missed']} checkpoints in a row were not saved",
        happened=str(data["why"]),
        done="training goes on; each save is tried anew",
        todo="look at the store: space, rights, network; a fault now costs all steps since the newest checkpoint",
        command="stormsail checkpoints ls RUN",
        page="missed-checkpoints",
    )


def _corrupt(event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    return Words(
        level=Level.WARNING,
        title=f"checkpoint {data['generation']}/{event.step} is damaged",
        happened=str(data["problem"]),
        done="it is never chosen again; an older one is used",
        todo="find out what damaged it; if others are damaged too, the store or a host is at fault",
        command="stormsail checkpoints verify RUN",
        page="damaged-checkpoint",
    )


def _away(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    return Words(
        level=Level.WARNING,
        title="the store is away",
        happened=f"nothing could be stored for {data['for_s']:.0f} s: {data['why']}",
        done="training goes on; events and rows are kept on this machine and sent later; checkpoints are missed",
        todo="bring the store back; a fault meanwhile waits for it up to journal.deadline_s",
        command="stormsail events RUN",
        page="store-away",
        key="store",
    )


def _slow(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    return Words(
        level=Level.WARNING,
        title="throughput has collapsed",
        happened=f"{data['tokens_per_s']:,.0f} tokens/s; usual are {data['usual_tokens_per_s']:,.0f}",
        done="nothing: the numbers are right, only slow",
        todo="look for a slow host, network or data source; other jobs on the same machines",
        command="stormsail monitors RUN",
        page="throughput",
        key="throughput",
    )


def _straggler(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    return Words(
        level=Level.WARNING,
        title=f"rank {data['rank']} is slow",
        happened=f"on {data['host'] or 'an unknown host'} its own work takes {data['ratio']:.2f} x that of the others",
        done="nothing: all others wait for it at every step",
        todo="look at that host: clocks, heat, other jobs; take it out if it stays slow",
        command="stormsail monitors RUN",
        page="straggler",
        key=f"straggler.{data['rank']}",
    )


def _hardware(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    ranks = ", ".join(map(str, data["ranks"]))
    return Words(
        level=Level.WARNING,
        title=f"hardware is suspected{f': rank {ranks}' if ranks else ''}",
        happened=str(data["why"]),
        done="the run goes on from a state that is known good, on the same nodes",
        todo=str(data["todo"]),
        command="stormsail events RUN",
        page="rank-outlier",
        key=f"hardware.{ranks}",
    )


def _exhausted(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    tried = data.get("tried", True)  # an older journal does not say
    done = "every repair that was allowed" if tried else f"no repair: {data['why']}"
    return Words(
        level=Level.PAGE,
        title="the ladder is used up; the run has stopped" if tried else "the run has stopped for a person",
        happened=str(data["reason"]),
        done=f"{done}; the run has stopped and everything is kept",
        todo="read the report, change what it points to, then start the same command again",
        page="ladder-used-up" if tried else "incident",
        key="end",
    )


def _failed(_event: Event, data: Mapping[str, Any], _before: Sequence[Event]) -> Words:
    return Words(
        level=Level.PAGE,
        title="the run has failed",
        happened=str(data["error"]),
        done="the run has stopped and everything is kept",
        todo="mend what the error names, then start the same command again",
        page="run-failed",
        key="end",
    )


def _good_news(title: str, happened: str, key: str = "", level: Level = Level.INFO) -> Words:
    return Words(level=level, title=title, happened=happened, done=_NOTHING, todo=_NOTHING, key=key)


_Teller = Callable[[Event, Mapping[str, Any], Sequence[Event]], Words | None]

_TELLERS: Mapping[str, _Teller] = {
    "ladder.decided": _decided,
    "ladder.shadowed": _shadowed,
    "hang.shadowed": _hang_left,
    "hang.suspected": _suspected,
    "checkpoint.alert": _missed,
    "checkpoint.corrupt": _corrupt,
    "store.away": _away,
    "throughput.collapsed": _slow,
    "rank.slow": _straggler,
    "hardware.suspected": _hardware,
    "run.exhausted": _exhausted,
    "run.failed": _failed,
    "episode.closed": lambda e, d, _b: _good_news("healthy again", f"episode {d['episode']} closed at step {e.step}"),
    "store.back": lambda _e, d, _b: _good_news(
        "the store is back", f"it was away for {d['for_s']:.0f} s; all was sent", key="store"
    ),
    "throughput.recovered": lambda _e, d, _b: _good_news(
        "throughput is back", f"{d['tokens_per_s']:,.0f} tokens/s", key="throughput"
    ),
    "run.finished": lambda e, _d, _b: _good_news("the run is done", f"all {e.step} steps are done", key="end"),
    "run.stopped": lambda e, d, _b: _good_news("the run was stopped", f"at step {e.step}: {d['reason']}", key="end"),
}

ALERTING = frozenset(_TELLERS)
"""Kinds of events that are worth an alert."""


def for_level(alert: Alert | None, least: Level) -> Alert | None:
    """The alert, if it is at least of this level."""
    return alert if alert is not None and alert.level.rank >= least.rank else None


def trial_alert(run: str, *, time_s: float) -> Alert:
    """What `stormsail alerts test` sends."""
    words = _good_news("this is a test", "somebody typed `stormsail alerts test`")
    return Alert(
        key="test",
        level=words.level,
        run=run,
        step=None,
        time_s=time_s,
        title=words.title,
        happened=words.happened,
        done="this message was sent",
        todo="nothing: alerts of this run reach you here",
        look=f"stormsail status {run}  ({RUNBOOK})",
    )
