"""From a run on its storage to what monitors look at."""

from __future__ import annotations

from stormsail.platform.config.dump import parse_dump
from stormsail.platform.errors import ConfigError
from stormsail.supervisor.monitors.view import RunView
from stormsail.supervisor.reading import ReadRun


def view_of(run: ReadRun, *, now_s: float) -> RunView:
    """A run as monitors see it.

    Args:
        run: As its storage tells it.
        now_s: The time of looking; a run that is over is looked at as of its end.

    Raises:
        ConfigError: The run was made and never started.
    """
    if not run.record.config:
        raise ConfigError(f"run {run.place.name!r} has not begun yet", todo="try again in a moment")
    over = bool(run.record.outcome)
    return RunView(
        config=parse_dump(run.record.config),
        rows=run.rows,
        events=run.events,
        record=run.record,
        now_s=run.events[-1].time_s if over else now_s,
    )
