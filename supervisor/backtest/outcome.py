"""What a back-test found, as text for a person and as JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.engine import Alarm
from stormsail.supervisor.backtest.scoring import Score
from stormsail.workers.detect.rules.registry import RuleInfo
from stormsail.workers.detect.rules.row import Level
from stormsail.workers.detect.voice import near

_SHOWN_WATCHES = 5
_JUDGED_ROWS = 40  # with fewer, most rules have not begun to speak


@dataclass(frozen=True, slots=True)
class Judged:
    """One curve and the alarms on it, by step."""

    curve: Curve
    alarms: tuple[Alarm, ...]


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """How a preset, or one detector of it, did on all labelled curves.

    Attributes:
        preset: The preset's name.
        detector: The rule's name; None: all of them together.
        score: The figures.
    """

    preset: str
    detector: str | None
    score: Score


@dataclass(frozen=True, slots=True)
class Episode:
    """Incidents of one curve that belong together: the first of them, and the last step at which one was said."""

    first: Alarm
    until: int
    detectors: tuple[str, ...]


def to_json(judged: Sequence[Judged], scores: Sequence[ScoreRow] = (), unread: Sequence[str] = ()) -> dict[str, object]:
    """The outcome as JSON values; `scores`, and what is `unread`, only where there are some."""
    files = [
        {
            "file": one.curve.source,
            "steps": _steps(one.curve),
            "alarms": [
                {
                    "step": alarm.step,
                    "level": alarm.level.value,
                    "kind": alarm.kind.value,
                    "detector": alarm.detector,
                    "severity": alarm.severity if math.isfinite(alarm.severity) else None,
                    "reason": alarm.reason,
                }
                for alarm in one.alarms
            ],
        }
        for one in judged
    ]
    made: dict[str, object] = {"files": files}
    if scores:
        made["scores"] = [{"preset": row.preset, "detector": row.detector, **row.score.to_json()} for row in scores]
    if unread:
        made["unread"] = list(unread)
    return made


def episodes(one: Judged) -> list[Episode]:
    """Incidents that lie near each other, as one each: of the first alarm, whatever rule it comes from."""
    found: list[Episode] = []
    together = near(one.curve.stride)
    for alarm in one.alarms:
        if alarm.level is not Level.INCIDENT:
            continue
        if found and 0 <= alarm.step - found[-1].until <= together:
            last = found[-1]
            names = tuple(dict.fromkeys((*last.detectors, alarm.detector)))
            found[-1] = Episode(last.first, alarm.step, names)
        else:
            found.append(Episode(alarm, alarm.step, (alarm.detector,)))
    return found


def render(one: Judged) -> str:
    """One curve in some lines: what it is, its incidents, and how much was watched."""
    lines = [_heading(one.curve), *(f"  note: {note}" for note in one.curve.notes)]
    happened = episodes(one)
    lines += [line for episode in happened for line in _episode_lines(episode)]
    watches = [alarm for alarm in one.alarms if alarm.level is Level.WATCH and not alarm.repeated]
    if not happened and not watches:
        return "\n".join([*lines, f"  {_why_silent(one.curve)}"])
    if not happened:
        lines.append("  no incident")
    return "\n".join([*lines, *_watch_lines(watches)])


def render_scores(rows: Sequence[ScoreRow]) -> str:
    """The figures against the labels, a line for each preset and each of its rules that spoke."""
    head = ("", "recall", "latency", "p90", "precision", "false", "per 10k", "on none")
    table = [head, *(_score_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    missed = [name for row in rows if row.detector is None for name in row.score.missed]
    said = [f"not found: {', '.join(dict.fromkeys(missed))}"] if missed else []
    return "\n".join(["incidents against the labels (latency in steps from onset)", *lines, *said])


def render_rules(infos: Sequence[RuleInfo], presets: Mapping[str, Sequence[str]]) -> str:
    """All rules with their thresholds, and which presets use them."""
    lines = []
    for info in infos:
        used = [name for name, rules in presets.items() if info.name in rules]
        lines.append(f"{info.name}  ({info.kind}, {info.level}; severity in {info.unit}; {info.source})")
        lines.append(f"  {info.summary}" + (f"  [presets: {', '.join(used)}]" if used else ""))
        lines += [f"    {one.name} = {one.value:g} {one.unit}: {one.meaning}" for one in info.thresholds]
    return "\n".join(lines)


def _why_silent(curve: Curve) -> str:
    if len(curve.points) < _JUDGED_ROWS:
        return (
            "too short to be judged by itself: --calm-context 300 puts calm rows before it, --continues FILE real ones"
        )
    return "calm: no alarm of any kind"


def _heading(curve: Curve) -> str:
    finite = [point.loss for point in curve.points if math.isfinite(point.loss)]
    first, last = curve.points[0], curve.points[-1]
    loss = f"loss {finite[0]:.3g} to {finite[-1]:.3g}, lowest {min(finite):.3g}" if finite else "no finite loss"
    every = "" if curve.stride == 1 else f", one in {curve.stride}"
    norm = "gradient norm logged" if curve.has_norm else "no gradient norm"
    return f"{curve.source}: steps {first.step} to {last.step} ({len(curve.points)} rows{every}); {loss}; {norm}"


def _episode_lines(episode: Episode) -> list[str]:
    first = episode.first
    span = f"step {first.step}" if episode.until == first.step else f"step {first.step}, until {episode.until}"
    lines = [f"  INCIDENT  {span}: {first.kind.value.replace('_', ' ')} ({first.detector})", f"{'':12}{first.reason}"]
    others = episode.detectors[1:]
    if others:
        lines.append(f"{'':12}seen too by {', '.join(others)}")
    return lines


def _watch_lines(watches: Sequence[Alarm]) -> list[str]:
    lines = [f"  watch     step {alarm.step}: {alarm.reason} ({alarm.detector})" for alarm in watches[:_SHOWN_WATCHES]]
    if len(watches) > _SHOWN_WATCHES:
        lines.append(f"  watch     and {len(watches) - _SHOWN_WATCHES} more (--json has all of them)")
    return lines


def _score_cells(row: ScoreRow) -> tuple[str, ...]:
    score = row.score
    found = f"{score.found}/{score.events}" if score.events else "-"
    return (
        f"preset {row.preset}" if row.detector is None else f"  {row.detector}",
        found,
        _or_dash(score.latency(0.5), "d"),
        _or_dash(score.latency(0.9), "d"),
        _or_dash(score.precision, ".2f"),
        str(score.false),
        _or_dash(score.false_per_10k, ".2f"),
        str(score.on_calm),
    )


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _steps(curve: Curve) -> int:
    return len({point.step for point in curve.points})
