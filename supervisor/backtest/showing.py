"""Prints a back-test: text or JSON on stdout, remarks on stderr, a picture where one was asked for."""

from __future__ import annotations

import sys
from pathlib import Path

from stormsail.platform.console import emit, emit_json, styled
from stormsail.supervisor.backtest.outcome import render, render_rules, render_scores, to_json
from stormsail.supervisor.backtest.plot import check_ending, draw
from stormsail.supervisor.backtest.session import Outcome, Request, backtest
from stormsail.workers.detect.rules.presets import PRESETS
from stormsail.workers.detect.rules.registry import RULES, describe
from stormsail.workers.detect.rules.row import Level


def show(request: Request, *, plot: Path | None, as_json: bool) -> bool:
    """Run a back-test and print it; whether all that was named could be read. Raises `ConfigError`."""
    if plot is not None:
        check_ending(plot)
    outcome = backtest(request)
    if plot is not None:
        draw(outcome.judged, plot)
    for remark in outcome.remarks:
        emit(f"{styled('note', 'yellow', stream=sys.stderr)}: {remark}", stream=sys.stderr)
    if as_json:
        emit_json(to_json(outcome.judged, outcome.scores, outcome.unread))
    else:
        emit(_text(outcome, plot))
    for reason in outcome.unread:
        emit(f"{styled('error', 'red', stream=sys.stderr)}: left out {reason}", stream=sys.stderr)
    return not outcome.unread


def show_rules(*, as_json: bool) -> None:
    """Print every rule with its thresholds, and the presets."""
    infos = [describe(rule) for rule in RULES.values()]
    presets = {name: [rule.name for rule in rules] for name, rules in PRESETS.items()}
    if as_json:
        emit_json({"rules": infos, "presets": presets})
    else:
        emit(render_rules(infos, presets))


def _text(outcome: Outcome, plot: Path | None) -> str:
    blocks = [_coloured(render(one)) for one in outcome.judged]
    if outcome.scores:
        blocks.append(render_scores(outcome.scores))
    alarms = [alarm for one in outcome.judged for alarm in one.alarms]
    if plot is not None:
        blocks.append(f"picture: {plot}")
    elif any(alarm.level is Level.INCIDENT for alarm in alarms):
        blocks.append(
            "see it with --plot FILE.svg; an incident is where a live run would have been stopped or repaired"
        )
    return "\n\n".join(blocks)


def _coloured(text: str) -> str:
    return text.replace("INCIDENT", styled("INCIDENT", "red")).replace(
        "\n  watch ", f"\n  {styled('watch', 'yellow')} "
    )
