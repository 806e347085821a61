"""The report of a run, made from its journal and its rows; pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stormsail import __version__
from stormsail.platform.errors import LadderExhaustedError, NoSuchRunError, StoppedError
from stormsail.supervisor.report import drills, evaluation, incidents
from stormsail.supervisor.report.fields import EventLike, read_rows, step_of, tables, text, whole
from stormsail.supervisor.report.lineage import Lineage, sort_out
from stormsail.supervisor.report.model import AlertsEntry, CheckpointsEntry, IncidentEntry, Report, ShadowEntry
from stormsail.supervisor.report.timeline import Span, classify

_STARTS = {"run.started", "run.continued"}
_ENDS = {"run.finished": "done", "run.stopped": "stopped", "run.exhausted": "exhausted", "run.failed": "failed"}
_CODES = {"done": 0, "stopped": StoppedError.exit_code, "exhausted": LadderExhaustedError.exit_code, "failed": 1}


def build_report(
    events: Iterable[EventLike],
    rows: Iterable[Mapping[str, object]],
    *,
    run: str = "",
    version: str = "",
    now_s: float | None = None,
) -> Report:
    """Build the report.

    Args:
        events: The whole journal.
        rows: The run's step rows as dicts, in any order.
        run: Name of the run ("": as its configuration in the journal says).
        version: Version of Stormsail ("": the one that runs now).
        now_s: Time of the report in seconds since the epoch, for a run that is not over (default: its last sign).

    Raises:
        NoSuchRunError: The journal is empty.
    """
    journal = sorted(events, key=lambda event: event.number)
    if not journal:
        raise NoSuchRunError(
            f"run {run!r} has not begun: its journal is empty", todo="look again once it trains, or start it once more"
        )
    steps = read_rows(rows)
    lineage = sort_out(journal, steps)
    ending = _ending(journal)
    start_s = journal[0].time_s
    end_s = _end_s(journal, ending, lineage, now_s)
    woven = incidents.climbs(journal)
    moments = [incidents.times(climb, steps, end_s) for climb in woven]
    entries = _entries(journal, woven, moments, lineage, start_s)
    spans = _spans(journal, lineage, [span for group in moments for one in group for span in one.spans()], end_s)
    seconds = classify(spans, start_s, end_s)
    wall_s = end_s - start_s
    last = lineage.live[-1] if lineage.live else None
    counts = Counter(event.kind for event in journal)
    return Report(
        run=run or _name(journal),
        stormsail=version or __version__,
        outcome=ending.outcome,
        outcome_reason=ending.reason,
        exit_code=ending.exit_code,
        started_time_s=start_s,
        wall_s=wall_s,
        ettr=_share(seconds["productive"], wall_s),
        ettr_without_queueing=_share(seconds["productive"], wall_s - seconds["idle"]),
        productive_s=seconds["productive"],
        replay_s=seconds["replay"],
        evaluate_s=seconds["evaluate"],
        stall_s=seconds["stall"],
        detect_s=seconds["detect"],
        decide_s=seconds["decide"],
        restart_s=seconds["restart"],
        load_s=seconds["load"],
        idle_s=seconds["idle"],
        lost_steps=sum(lineage.repeats.values()),
        steps=len(lineage.live),
        applied=last.applied if last is not None else 0,
        tokens=sum(row.tokens for row in lineage.live),
        final_loss=last.loss if last is not None else None,
        final_digest=ending.digest,
        dropped_updates=counts["update.dropped"],
        empty_steps=counts["step.empty"],
        watched_steps=sum(row.flagged for row in steps),
        incidents=tuple(entries),
        lr_events=_lr_events(journal),
        checkpoints=_checkpoints(journal, counts),
        evaluation=evaluation.evaluation_entry(journal, lineage),
        alerts=_alerts(journal),
        shadowed=_shadowed(journal),
        drill=drills.drill_entry(journal, _incident_of(woven, entries), last.step if last is not None else -1),
    )


def _name(journal: Sequence[EventLike]) -> str:
    """The name in the configuration that the run was last started with, or ""."""
    for event in reversed(journal):
        dumped = text(event.data, "config")
        if event.kind in _STARTS and dumped:
            config = json.loads(dumped)
            return text(config, "name") if isinstance(config, dict) else ""
    return ""


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the run ended, if it did."""

    event: EventLike | None
    outcome: str
    reason: str
    exit_code: int | None
    digest: str | None


def _ending(journal: Sequence[EventLike]) -> _Ending:
    """The last word on the run: an end that somebody continued is none."""
    for event in reversed(journal):
        if event.kind in _STARTS:
            break
        if event.kind in _ENDS:
            outcome = _ENDS[event.kind]
            code = whole(event.data, "exit_code")
            return _Ending(
                event=event,
                outcome=outcome,
                reason=text(event.data, "reason") or text(event.data, "error"),
                exit_code=_CODES[outcome] if code is None else code,
                digest=text(event.data, "digest") or None,
            )
    return _Ending(None, "running", "", None, None)


def _end_s(journal: Sequence[EventLike], ending: _Ending, lineage: Lineage, now_s: float | None) -> float:
    """The end of the wall time: the last step of a run that is done, or else the last that is known of it."""
    start_s = journal[0].time_s
    last_row_s = max((row.time_s for row in (*lineage.first, *lineage.again)), default=start_s)
    if ending.event is None:
        return max(start_s, last_row_s, journal[-1].time_s if now_s is None else now_s)
    if ending.outcome == "done" and last_row_s > start_s:
        return last_row_s
    return max(start_s, ending.event.time_s)


def _entries(
    journal: Sequence[EventLike],
    woven: Sequence[incidents.Climb],
    moments: Sequence[Sequence[incidents.Times]],
    lineage: Lineage,
    start_s: float,
) -> list[IncidentEntry]:
    begun = _begun_generations(journal, lineage)
    entries = []
    for number, (climb, group) in enumerate(zip(woven, moments, strict=True), start=1):
        decided = {event.number for attempt in climb.attempts for event in attempt.decided}
        lost = sum(lineage.repeats[generation] for generation, decision in begun.items() if decision in decided)
        entries.append(incidents.describe(number, climb, group, lost_steps=lost, start_s=start_s))
    return entries


def _begun_generations(journal: Sequence[EventLike], lineage: Lineage) -> dict[int, int]:
    """Which decision (by journal number) began which generation; a planned start is begun by none."""
    marks = [event for event in journal if event.kind == "ladder.decided" or event.kind in _STARTS]
    begun = {}
    for generation, birth in lineage.births.items():
        before = [event for event in marks if event.number < birth.number]
        if before and before[-1].kind == "ladder.decided":
            begun[generation] = before[-1].number
    return begun


def _spans(journal: Sequence[EventLike], lineage: Lineage, recoveries: Sequence[Span], end_s: float) -> list[Span]:
    spans = [Span("productive", row.begun_s, row.time_s) for row in lineage.first]
    spans += [Span("replay", row.begun_s, row.time_s) for row in lineage.again]
    spans += recoveries
    spans += _waits(journal, end_s)
    spans += evaluation.spans(journal)
    begins = sorted(row.begun_s for row in (*lineage.first, *lineage.again))
    for event in journal:
        if event.kind in _STARTS or event.kind == "attempt.started":
            stepping_s = next((begun_s for begun_s in begins if begun_s >= event.time_s), end_s)
            spans.append(Span("restart", event.time_s, stepping_s))
    return spans


def _waits(journal: Sequence[EventLike], end_s: float) -> list[Span]:
    """Times in which the run could do nothing: it waited for resources, or it was over."""
    spans: list[Span] = []
    since_s: float | None = None
    for event in journal:
        if event.kind == "resources.waiting" or event.kind in _ENDS:
            since_s = event.time_s if since_s is None else since_s
        elif since_s is not None and (event.kind in _STARTS or event.kind == "resources.ready"):
            spans.append(Span("idle", since_s, event.time_s))
            since_s = None
    return spans if since_s is None else [*spans, Span("idle", since_s, end_s)]


def _incident_of(woven: Sequence[incidents.Climb], entries: Sequence[IncidentEntry]) -> dict[int, IncidentEntry]:
    return {
        attempt.fault.number: entry
        for climb, entry in zip(woven, entries, strict=True)
        for attempt in climb.attempts
        if attempt.fault is not None
    }


def _lr_events(journal: Sequence[EventLike]) -> tuple[dict[str, object], ...]:
    for event in reversed(journal):
        if event.kind == "ladder.decided":
            return tuple(dict(item) for item in tables(event.data, "lr_events"))
    return ()


def _checkpoints(journal: Sequence[EventLike], counts: Mapping[str, int]) -> CheckpointsEntry:
    commits = [event for event in journal if event.kind == "checkpoint.committed"]
    return CheckpointsEntry(
        committed=len(commits),
        good=counts["checkpoint.good"],
        missed=counts["checkpoint.missed"],
        corrupt=counts["checkpoint.corrupt"],
        deleted=sum(_length(event.data.get("refs")) for event in journal if event.kind == "checkpoint.deleted"),
        bytes=sum(whole(event.data, "bytes") or 0 for event in commits),
        last_step=step_of(commits[-1]) if commits else None,
        last_generation=whole(commits[-1].data, "generation") if commits else None,
        last_digest=(text(commits[-1].data, "digest") or None) if commits else None,
    )


def _alerts(journal: Sequence[EventLike]) -> AlertsEntry:
    lost = [event for event in journal if event.kind in ("alert.failed", "alert.unusable")]
    return AlertsEntry(
        sent=sum(event.kind == "alert.sent" for event in journal),
        lost=len(lost),
        why=text(lost[-1].data, "why") if lost else "",
    )


def _shadowed(journal: Sequence[EventLike]) -> tuple[ShadowEntry, ...]:
    return tuple(
        ShadowEntry(
            step=step_of(event),
            kind=text(event.data, "kind") or "hang",
            error=text(event.data, "error") or text(event.data, "reason"),
            action=text(event.data, "action") or "end the attempt and resume",
            diagnosis=text(event.data, "diagnosis"),
        )
        for event in journal
        if event.kind in ("ladder.shadowed", "hang.shadowed")
    )


def _length(value: object) -> int:
    return len(value) if isinstance(value, list | tuple) else 0


def _share(part_s: float, whole_s: float) -> float:
    return part_s / whole_s if whole_s > 0.0 else 0.0
