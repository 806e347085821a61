"""`stormsail monitors`: what is watched, when it is normal, what to do when not; with a run, how it stands."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from stormsail.platform.console import emit, emit_json
from stormsail.platform.errors import ConfigError
from stormsail.platform.home import Home


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(monitors)


def monitors(
    run: Annotated[
        str | None, typer.Argument(help="A run's name, to see how it stands; none: only the table.", metavar="RUN")
    ] = None,
    *,
    preset: Annotated[str, typer.Option(help="default, or article: the metric table of the articles.")] = "default",
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the run lives, if not as remembered.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")] = False,
) -> None:
    """List everything that is monitored: unit, source, limits, action, runbook; of a run also value, level, since when."""
    from stormsail.supervisor.monitors.showing import (
        readings_json,
        readings_of,
        render_readings,
        render_table,
        table_json,
    )
    from stormsail.supervisor.monitors.table import PRESETS

    if preset not in PRESETS:
        raise ConfigError(
            f"there is no preset {preset!r}", where="--preset", todo=f"choose one of {', '.join(PRESETS)}"
        )
    if run is None:
        if as_json:
            emit_json({"preset": preset, "items": table_json(preset)})
        else:
            emit(render_table(preset))
        return
    from stormsail.supervisor import places
    from stormsail.supervisor.monitors.reading import view_of
    from stormsail.supervisor.reading import read_run

    place = places.locate(Home.here(), run, storage, lambda text: typer.echo(text, err=True))
    view = view_of(read_run(place), now_s=time.time())
    readings = readings_of(view, preset)
    if as_json:
        emit_json({"run": place.name, "preset": preset, "time_s": view.now_s, "items": readings_json(readings)})
    else:
        emit(render_readings(readings, now_s=view.now_s))
