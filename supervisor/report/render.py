"""A report as plain text that a person likes to read; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stormsail.platform.diagnosis import spoken
from stormsail.platform.vault.places import spell
from stormsail.supervisor.report.fields import real, text
from stormsail.supervisor.report.model import DecisionEntry, DrillEntry, EvaluationEntry, IncidentEntry, Report

_MB = 1_000_000
_MINUTE_S = 60.0
_HOUR_S = 3600.0

_KINDS = {
    "process": "lost process",
    "hang": "hanging process",
    "user_code": "error in the user's code",
    "spike": "loss spike",
    "nonfinite": "non-finite numbers",
    "resume_fault": "resume that does not repeat its losses",
}
_TIERS = {"resume": "resume", "rollback": "rollback", "fp32_replay": "FP32 replay", "exhausted": "exhausted"}


def render_report(report: Report) -> str:
    """Return the report as text, without a line break at its end."""
    blocks = [
        list(_head(report)),
        *[list(_incident(incident)) for incident in report.incidents],
        list(_shadowed(report)),
        list(_rates(report)),
        [*_evaluation(report.evaluation), *_checkpoints(report), *_alerts(report)],
        list(_drill(report.drill)) if report.drill is not None else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def length(seconds: float) -> str:
    """Return a length of time: 0.42 s, 12.3 s, 4 min 12 s, 3 h 05 min."""
    if seconds < 1.0:
        return f"{seconds:.2f} s"
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / _MINUTE_S), 60)
    return f"{hours} h {minutes:02d} min"


def clock(seconds: float) -> str:
    """Return a time since the start of the run: 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _head(report: Report) -> Iterator[str]:
    code = "" if report.exit_code is None else f" (exit code {report.exit_code})"
    yield f"Run {report.run or 'without a name'}: {report.outcome}{code} after {length(report.wall_s)}"
    if report.outcome_reason:
        yield f"  why       {report.outcome_reason}"
    loss = "" if report.final_loss is None else f", last loss {report.final_loss:.4f}"
    yield f"  steps     {report.steps:,} with {report.applied:,} updates, {report.tokens:,} tokens{loss}"
    if report.final_digest:
        yield f"  state     {report.final_digest}"
    yield (
        f"  ETTR      {report.ettr:.1%} of the time did new steps ({report.ettr_without_queueing:.1%} without queueing)"
    )
    yield f"  time      {_where_time_went(report)}"
    lost = "no step was" if report.lost_steps == 0 else _count(report.lost_steps, "step was", "steps were")
    yield f"  lost      {lost} computed twice"
    notes = [
        (report.dropped_updates, "non-finite update was dropped", "non-finite updates were dropped"),
        (report.empty_steps, "step had no real token", "steps had no real token"),
        (report.watched_steps, "step was flagged without consequence", "steps were flagged without consequence"),
    ]
    for number, one, many in notes:
        if number:
            yield f"  note      {_count(number, one, many)}"
    if not report.incidents:
        yield "  incidents none"


def _where_time_went(report: Report) -> str:
    parts = [
        ("new steps", report.productive_s),
        ("steps again", report.replay_s),
        ("evaluating", report.evaluate_s),
        ("starting", report.restart_s),
        ("detecting", report.detect_s),
        ("deciding", report.decide_s),
        ("loading", report.load_s),
        ("stalled", report.stall_s),
        ("waiting", report.idle_s),
    ]
    return ", ".join(f"{name} {length(seconds)}" for name, seconds in parts if seconds >= 0.005)  # noqa: PLR2004 - shows as 0.01 s


def _incident(incident: IncidentEntry) -> Iterator[str]:
    kind = _KINDS.get(incident.kind, incident.kind)
    where = "" if incident.step is None else f" at step {incident.step}"
    begun = "" if incident.onset in (None, incident.step) else f", begun at step {incident.onset}"
    yield f"Incident {incident.number}: {kind}{where}{begun}: {_outcome(incident)}"
    rank = "" if incident.rank is None or incident.rank < 0 else f" on rank {incident.rank}"
    yield f"  {clock(incident.detected_s):>8}  noticed{rank}" + (
        f": {_short(incident.error)}" if incident.error else ""
    )
    yield from _known(incident)
    for decision in incident.decisions:
        yield f"  {clock(decision.decided_s):>8}  {_decision(decision)}"
    if incident.replay is not None:
        yield f"            {_replay(incident.replay)}"
    if incident.restored_from:
        yield f"            the state came from {spell(incident.restored_from)}"
    if incident.recovered_s is not None and incident.mttr_s is not None:
        yield f"  {clock(incident.recovered_s):>8}  on new ground after {length(incident.mttr_s)}: {_phases(incident)}"
    if incident.lost_steps:
        yield f"            {_count(incident.lost_steps, 'step was', 'steps were')} computed again"


def _known(incident: IncidentEntry) -> Iterator[str]:
    """What is known of a fault besides what was seen."""
    if incident.samples is not None:
        yield f"            samples {incident.samples[0]} to {incident.samples[1]} of the data order"
    for evidence in incident.evidence:
        yield f"            evidence: {evidence.finding}"
        yield f"            {len(evidence.keys)} files in {evidence.folder}" + (
            f" ({evidence.problem})" if evidence.problem else f", and stored below {_folder_of(evidence.keys)}"
        )
    if incident.diagnosis is not None:
        yield from _diagnosis(incident.diagnosis)


def _folder_of(keys: tuple[str, ...]) -> str:
    return keys[0].rpartition("/")[0] if keys else "nothing"


def _diagnosis(found: Mapping[str, object]) -> Iterator[str]:
    yield f"            diagnosis: {spoken(text(found, 'cause'), real(found, 'confidence') or 0.0)}"
    evidence = found.get("evidence")
    for line in evidence if isinstance(evidence, list | tuple) else ():
        yield f"              {line}"


def _outcome(incident: IncidentEntry) -> str:
    if incident.recovered:
        return f"cured by tier {incident.tier} ({_TIERS.get(incident.tier_name, incident.tier_name)})"
    if incident.tier is None:
        return "no repair was tried"
    tried = ", ".join(str(tier) for tier in incident.tiers_tried if tier <= 3)  # noqa: PLR2004 - the last real tier
    return f"not cured; tiers tried: {tried}" if tried else "not cured; no tier was tried"


def _decision(decision: DecisionEntry) -> str:
    if decision.action:
        return decision.action
    return f"{f'tier {decision.tier}' if decision.tier is not None else 'stop'}: {decision.reason}"


def _replay(replay: dict[str, object]) -> str:
    verdict = replay.get("verdict")
    fp32, bf16 = replay.get("fp32_loss"), replay.get("bf16_loss")
    losses = f" (loss {fp32:.4f} in FP32, {bf16:.4f} before)" if _numbers(fp32, bf16) else ""
    return f"FP32 replay ended at step {replay.get('step')}" + (f": {verdict}" if verdict else "") + losses


def _numbers(*values: object) -> bool:
    return all(isinstance(value, float) for value in values)


def _phases(incident: IncidentEntry) -> str:
    phases = incident.phases
    parts = [
        ("noticing", phases.detect_s),
        ("deciding", phases.decide_s),
        ("restarting", phases.restart_s),
        ("loading", phases.load_s),
        ("catching up", phases.catch_up_s),
    ]
    return ", ".join(f"{name} {length(seconds)}" for name, seconds in parts)


def _rates(report: Report) -> Iterator[str]:
    if report.lr_events:
        yield "Learning rate"
    for event in report.lr_events:
        until = event.get("released_step")
        held = "for good" if until is None else f"until step {until}, then back in a ramp"
        yield f"  x {event.get('factor')} from step {event.get('step')}, held {held}"


def _shadowed(report: Report) -> Iterator[str]:
    if report.shadowed:
        yield "Shadow mode: nothing was done about"
    for left in report.shadowed:
        where = "" if left.step is None else f" at step {left.step}"
        yield f"  {_KINDS.get(left.kind, left.kind)}{where}: {_short(left.error)}"
        if left.diagnosis:
            yield f"    diagnosis: {left.diagnosis}"
        yield f"    it would have been: {left.action}"


def _alerts(report: Report) -> Iterator[str]:
    found = report.alerts
    if found.sent or found.lost:
        lost = f", {found.lost} lost: {_short(found.why)}" if found.lost else ""
        yield f"Alerts: {_count(found.sent, 'message', 'messages')} sent{lost}"


def _checkpoints(report: Report) -> Iterator[str]:
    found = report.checkpoints
    newest = "" if found.last_step is None else f"; the newest at step {found.last_step}"
    yield (
        f"Checkpoints: {found.committed} committed ({found.bytes / _MB:.1f} MB), {found.good} known good, "
        f"{found.deleted} removed by retention{newest}"
    )
    if found.missed or found.corrupt:
        yield f"  {found.missed} could not be saved, {found.corrupt} failed verification"


def _evaluation(found: EvaluationEntry | None) -> Iterator[str]:
    if found is None:
        return
    last = "no finite loss" if found.last_loss is None else f"loss {found.last_loss:.4f}"
    besides = f" ({found.thrown_away} more of states that were thrown away)" if found.thrown_away else ""
    yield f"Evaluation: {_count(found.count, 'time', 'times')}{besides}, the last at step {found.last_step}: {last}"
    if found.best_loss is not None:
        kept = "damaged" if found.best_damaged else "kept" if found.best_kept else "not there"
        yield f"  the lowest at step {found.best_step}: loss {found.best_loss:.4f}, its checkpoint is {kept}"
    if found.other_samples:
        were = _count(found.other_samples, "was", "were")
        yield f"  {were} over other held-out samples, and compare with none of these"


def _drill(drill: DrillEntry) -> Iterator[str]:
    yield f"Drill: recovered {drill.recovered} of {drill.fired}"
    for fault in drill.faults:
        cure = "healed without a repair" if fault.incident is None else f"incident {fault.incident}, recovered"
        lost = "not recovered" if fault.incident is None else f"incident {fault.incident}, not recovered"
        yield f"  {fault.kind} at step {fault.step}: {cure if fault.recovered else lost}"
    if drill.twin is not None:
        yield f"  undisturbed twin at step {drill.twin.step}: identical {'yes' if drill.twin.identical else 'no'}"
        yield f"    this run {drill.twin.digest}"
        yield f"    the twin {drill.twin.twin_digest}"


def _short(line: str) -> str:
    """The first line, cut in the middle where it is long."""
    first = line.splitlines()[0] if line else ""
    return first if len(first) <= 160 else f"{first[:100]} ... {first[-50:]}"  # noqa: PLR2004 - a wide terminal


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
