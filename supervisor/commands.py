"""The commands that start, follow and look at runs. Torch, Ray and boto3 are imported inside them, never above."""

from __future__ import annotations

import os
import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.platform.certificate_file import note_for
from stormsail.platform.config.load import load_config
from stormsail.platform.console import emit, emit_json
from stormsail.platform.errors import CheckFailedError, CheckpointError, ConfigError, StormsailError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace

if TYPE_CHECKING:  # light commands load nothing that this needs
    from stormsail.supervisor.asking import FoundRun

_LEAVING_TRIES = 16

FileArgument = Annotated[Path, typer.Argument(help="The run's YAML file.", metavar="FILE")]
RunArgument = Annotated[
    str, typer.Argument(help="The run's name, or NAME@2 for its second incarnation.", metavar="RUN")
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key, as in train.steps=200; may be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")]
StorageOption = Annotated[
    str | None,
    typer.Option("--storage", metavar="URL", help="Where the run lives, if not where this machine remembers."),
]


class OnAnomaly(StrEnum):
    """As `ladder.on_anomaly`."""

    REPAIR = "repair"
    STOP = "stop"


def register(app: typer.Typer) -> None:
    """Add this package's commands."""
    from stormsail.supervisor import shelf_commands
    from stormsail.supervisor.alerting import commands as alert_commands
    from stormsail.supervisor.monitors import commands as monitor_commands

    app.command()(train)
    app.command()(attach)
    app.command()(status)
    app.command()(events)
    app.command()(report)
    app.command()(stop)
    app.command()(down)
    shelf = typer.Typer(help="Look at a run's checkpoints.", no_args_is_help=True)
    shelf.command("ls")(checkpoints_ls)
    shelf.command("verify")(checkpoints_verify)
    shelf_commands.register(shelf)
    app.add_typer(shelf, name="checkpoints")
    alert_commands.register(app)
    monitor_commands.register(app)


def _notify(text: str) -> None:
    typer.echo(text, err=True)


def train(
    file: FileArgument,
    *,
    overrides: SetOption = [],  # noqa: B006 - typer reads it, nobody writes to it
    fresh: Annotated[bool, typer.Option(help="Begin anew; what is there is kept as NAME@N.")] = False,
    must_resume: Annotated[bool, typer.Option(help="Fail where there is nothing to go on with.")] = False,
    take_over: Annotated[bool, typer.Option(help="Take the run from an owner whose lease has expired.")] = False,
    on_anomaly: Annotated[
        OnAnomaly | None, typer.Option(help="An incident of bad numbers is repaired, or stops the run (exit code 4).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run, or go on with, the training that FILE describes, and follow it to the end."""
    chosen = [] if on_anomaly is None else [f"ladder.on_anomaly={on_anomaly}"]
    config = load_config(file, overrides=[*overrides, *chosen], environ=os.environ)
    note = note_for(file, config)
    if note is not None:
        _notify(f"note: {note}")
    from stormsail.supervisor.host.lease import hold
    from stormsail.supervisor.launch import LaunchOptions
    from stormsail.supervisor.training import train as run_training

    home = Home.here()
    options = LaunchOptions(fresh=fresh, must_resume=must_resume, take_over=take_over)
    with hold(home):
        out = sys.stderr if as_json else sys.stdout
        place = run_training(config, options, home=home, config_folder=file.parent, notify=_notify, out=out)
        _finish(place, as_json=as_json)


def _finish(place: RunPlace, *, as_json: bool) -> None:
    """Print the report, and for a drill the verdict as the last line."""
    from stormsail.platform.config.dump import parse_dump
    from stormsail.supervisor.reading import read_run
    from stormsail.supervisor.report.build import build_report
    from stormsail.supervisor.report.render import render_report
    from stormsail.supervisor.report.verdict import drill_verdict

    run = read_run(place)
    made = build_report(run.events, run.rows)
    if as_json:
        emit_json(made.to_json())
    else:
        emit(render_report(made))
    drill = parse_dump(run.record.config).drill
    if not drill.faults and drill.twin_step is None:
        return
    verdict = drill_verdict(made.drill, declared=len(drill.faults), proof_wanted=drill.twin_step is not None)
    if not as_json:
        emit(verdict.line)
    if not verdict.passed:
        raise CheckFailedError("the drill was not passed", where=place.name, todo="the report above says which part")


def attach(run: RunArgument, *, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """Follow a run that was started elsewhere, to its end."""
    from stormsail.supervisor.follow import Screen
    from stormsail.supervisor.host.lease import hold
    from stormsail.supervisor.training import follow_to_end, raise_outcome

    home = Home.here()
    out = sys.stderr if as_json else sys.stdout
    with hold(home):
        found = _find(home, run, storage)
        if found.read.record.outcome:
            raise_outcome(found.place, None)
        else:
            follow_to_end(found.actor(), found.place, Screen(found.config, out=out), name=found.place.name)
        _finish(found.place, as_json=as_json)


def status(run: RunArgument, *, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """Say how a run stands, while it runs and afterwards."""
    from stormsail.supervisor import places
    from stormsail.supervisor.reading import read_run, render_status, status_of

    place = places.locate(Home.here(), run, storage, _notify)
    state = status_of(read_run(place))
    if as_json:
        emit_json(state)
    else:
        emit(render_status(state))


def events(run: RunArgument, *, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """Tell what happened, oldest first."""
    from dataclasses import asdict

    from stormsail.supervisor import places, telling
    from stormsail.supervisor.reading import read_run

    place = places.locate(Home.here(), run, storage, _notify)
    happened = read_run(place).events
    if as_json:
        emit_json({"run": place.name, "events": [asdict(event) for event in happened]})
        return
    for event in happened:
        text = telling.tell(event)
        if text is not None:
            emit(f"{telling.clock(event.time_s)} {text}")


def report(
    run: RunArgument,
    *,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the run: loss, incidents, LR (.svg, .png or .pdf).")
    ] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the run's report: what happened, when, why each decision was taken, and what it cost."""
    from stormsail.supervisor import places
    from stormsail.supervisor.picture import draw
    from stormsail.supervisor.reading import read_run
    from stormsail.supervisor.report.build import build_report
    from stormsail.supervisor.report.render import render_report

    place = places.locate(Home.here(), run, storage, _notify)
    read = read_run(place)
    made = build_report(read.events, read.rows)
    if plot is not None:
        draw(made, read.rows, plot)
    if as_json:
        emit_json(made.to_json())
    else:
        emit(render_report(made))


def stop(
    run: RunArgument,
    *,
    reason: Annotated[str, typer.Option(help="Kept in the run's journal.")] = "asked on the command line",
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a run to save its state and end; it can go on later."""
    from stormsail.supervisor.asking import ask_to_stop

    found = _find(Home.here(), run, storage)
    outcome = found.read.record.outcome
    if not outcome:
        ask_to_stop(found.actor(), reason)
    if as_json:
        emit_json({"run": found.place.name, "stop_requested": not outcome, "outcome": outcome or None})
    elif outcome:
        emit(f"run {found.place.name} is already {outcome}")
    else:
        emit(
            f"run {found.place.name} stops after its current step, or after the next one if it is being evaluated; "
            f"follow it with `stormsail attach {found.place.name}`"
        )


def _find(home: Home, run: str, storage: str | None) -> FoundRun:
    from stormsail.supervisor.asking import find_run

    return find_run(home, run, storage, _notify)


def down(
    *,
    force: Annotated[bool, typer.Option(help="Also while runs are live; they can go on later.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End this machine's local Ray and store."""
    from stormsail.supervisor.host import client

    home = Home.here()
    live = client.live_runs(home)
    pause, tries = threading.Event(), 0
    while live and not force and tries < _LEAVING_TRIES:
        pause.wait(0.5)  # a run that has just ended leaves within seconds
        live, tries = client.live_runs(home), tries + 1
    if live and not force:
        raise ConfigError(
            f"these runs are live: {', '.join(live)}",
            todo="stop them first (`stormsail stop RUN`), or end everything with `stormsail down --force`",
        )
    ended = client.down(home)
    if as_json:
        emit_json({"ended": ended})
    else:
        emit("the local host process has ended" if ended else "no local host process was running")


def checkpoints_ls(run: RunArgument, *, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """List a run's checkpoints: which are on the live line, which are known good."""
    from stormsail.supervisor import places
    from stormsail.supervisor.shelf import list_shelf, render_shelf

    place = places.locate(Home.here(), run, storage, _notify)
    shelf = list_shelf(place)
    if as_json:
        emit_json({"run": place.name, "checkpoints": shelf})
    else:
        emit(render_shelf(shelf))


def checkpoints_verify(run: RunArgument, *, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """Read every byte of every checkpoint and compare; exit 3 and the objects' names if one is damaged."""
    from stormsail.supervisor import places
    from stormsail.supervisor.shelf_verify import render_verified, verify_shelf

    place = places.locate(Home.here(), run, storage, _notify)
    found = verify_shelf(place)
    if as_json:
        emit_json({"run": place.name, "checkpoints": found.checked, "problems": found.problems})
    else:
        emit(render_verified(found))
    if found.problems:
        error: StormsailError = CheckpointError(
            f"{len(found.problems)} damaged or missing objects",
            where=place.address.url,
            todo="the run restores from the newest checkpoint that is whole; damaged ones are never used",
            objects=tuple(problem.key for problem in found.problems),
        )
        raise error
