"""One back-test from what was asked to what was found: reads the files, runs the rules, scores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.engine import Alarm, run
from stormsail.supervisor.backtest.labels import Label
from stormsail.supervisor.backtest.outcome import Judged, ScoreRow
from stormsail.supervisor.backtest.reading import read_curves, read_labels
from stormsail.supervisor.backtest.scoring import Score, score
from stormsail.supervisor.backtest.synthetic import calm_before
from stormsail.workers.detect.rules.presets import preset, with_data_period
from stormsail.workers.detect.rules.registry import AnyRule, find

_CHOSEN = "chosen"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked.

    Attributes:
        names: Files, folders, MLflow runs.
        columns: Names of columns, or guess.
        presets: Presets to run; the first gives the alarms, all are scored.
        rules: Run these rules instead.
        continues: What the one file goes on from.
        calm_rows: Made-up calm rows before each curve.
        data_period: Period of the data's order, in steps; 0: unknown.
        labels: A file of labels.
        tracking_uri: Of MLflow.
    """

    names: tuple[str, ...]
    columns: Columns = field(default_factory=Columns)
    presets: tuple[str, ...] = ("default",)
    rules: tuple[str, ...] = ()
    continues: str | None = None
    calm_rows: int = 0
    data_period: int = 0
    labels: Path | None = None
    tracking_uri: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found.

    Attributes:
        judged: Each curve with its alarms.
        scores: Against the labels; empty without.
        remarks: What the reader of the outcome should know.
        unread: What was named and could not be read, each with the reason.
    """

    judged: tuple[Judged, ...]
    scores: tuple[ScoreRow, ...] = ()
    remarks: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def backtest(request: Request) -> Outcome:
    """Do it. Raises `ConfigError` for anything that was asked wrongly, and where nothing can be read."""
    teams = _teams(request)
    found = read_curves(request.names, request.columns, tracking_uri=request.tracking_uri)
    curves = found.curves
    labels = () if request.labels is None else read_labels(request.labels)
    earlier = _earlier(request, curves)
    alarms = {name: [_run(rules, curve, earlier, request) for curve in curves] for name, rules in teams.items()}
    first = next(iter(teams))
    judged = tuple(Judged(curve, tuple(said)) for curve, said in zip(curves, alarms[first], strict=True))
    rows: list[ScoreRow] = []
    if labels:
        for name, rules in teams.items():
            rows += _scores(name, rules, list(zip(curves, alarms[name], strict=True)), labels)
    remarks = [*(f"left out {reason}" for reason in found.left_out), *_remarks(request, curves, labels)]
    return Outcome(judged, tuple(rows), tuple(remarks), tuple(found.unread))


def _teams(request: Request) -> dict[str, tuple[AnyRule, ...]]:
    chosen = {name: preset(name) for name in request.presets}
    if request.rules:
        chosen = {_CHOSEN: find(request.rules)}
    return {name: with_data_period(rules, request.data_period) for name, rules in chosen.items()}


def _earlier(request: Request, curves: Sequence[Curve]) -> Curve | None:
    if request.continues is None:
        return None
    if len(curves) != 1:
        raise ConfigError(
            f"one file can go on from another, and there are {len(curves)}", where="--continues", todo="name one file"
        )
    earlier = read_curves([request.continues], request.columns, tracking_uri=request.tracking_uri).curves
    if len(earlier) != 1:
        raise ConfigError("this must be one curve", where=f"--continues {request.continues}")
    return earlier[0]


def _run(rules: Sequence[AnyRule], curve: Curve, earlier: Curve | None, request: Request) -> list[Alarm]:
    known = earlier.points if earlier else ()
    calm = calm_before(known or curve.points, request.calm_rows)
    return run(rules, curve, (*calm, *known), restarted=True if earlier else None)


def _scores(
    name: str, rules: Sequence[AnyRule], said: Sequence[tuple[Curve, list[Alarm]]], labels: Sequence[Label]
) -> list[ScoreRow]:
    known = {label.series for label in labels}
    labelled = [(curve, alarms) for curve, alarms in said if curve.name in known]
    rows = [ScoreRow(name, None, _total(labelled, labels))]
    for rule in rules:
        own = [(curve, [alarm for alarm in alarms if alarm.detector == rule.name]) for curve, alarms in labelled]
        rows.append(ScoreRow(name, rule.name, _total(own, labels)))
    return rows


def _total(said: Sequence[tuple[Curve, list[Alarm]]], labels: Sequence[Label]) -> Score:
    return sum((score(curve, alarms, labels) for curve, alarms in said), Score())


def _remarks(request: Request, curves: Sequence[Curve], labels: Sequence[Label]) -> list[str]:
    remarks = []
    known = {label.series for label in labels}
    unknown = [curve.name for curve in curves if curve.name not in known]
    if labels and unknown:
        remarks.append(f"no labels for {', '.join(unknown)}: not scored")
    names = {curve.name for curve in curves}
    lost = sorted(known - names)
    if lost:
        remarks.append(f"labels for {', '.join(lost)}: no such curve, not scored")
    for after in curves if request.continues is None else ():
        start = after.points[0].step
        for curve in curves:
            last = curve.points[-1].step
            if curve is not after and start > 0 and abs(last - start) <= curve.stride:
                remarks.append(
                    f"{after.name} begins where {curve.name} ends: judge its restart by --continues {curve.source}"
                )
    return remarks
