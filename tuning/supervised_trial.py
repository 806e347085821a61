"""The faithful kind of trial: a Stormsail run with its TorchTrainer, ZeRO-3, mixed precision and ladder.

`Tuner` takes no trainer any more, so a trial is a function that launches a run as `stormsail train` does, waits for its
end, and reads the result from the run's storage. A trial whose process died finds its run under its name and goes on
with it. A run whose ladder was used up has diverged; one that a fault ended is raised, and so retried.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Mapping
from pathlib import Path

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import InternalError, LadderExhaustedError, StoppedError
from stormsail.platform.home import Home
from stormsail.platform.messages import FaultKind
from stormsail.platform.runs import RunPlace, find_run
from stormsail.supervisor import places
from stormsail.supervisor.asking import ask_to_stop
from stormsail.supervisor.follow import Screen
from stormsail.supervisor.launch import LaunchOptions, launch
from stormsail.supervisor.reading import ReadRun, Row, read_run
from stormsail.supervisor.training import follow_to_end
from stormsail.tuning.limits import OverTimeError
from stormsail.tuning.metrics import Course, figures_of
from stormsail.tuning.objective import Measured
from stormsail.tuning.space import Trial

_ENDED = ("finished", "exhausted")


def run_supervised(config: RunConfig, trial: Trial, *, limit_s: float) -> Measured:
    """Run a trial as a supervised run, or go on with it.

    Must be called in a process that is connected to Ray.

    Args:
        config: The trial as a run.
        trial: The trial.
        limit_s: Seconds after which the run is asked to stop; it stops after its step, with a checkpoint to go on from.

    Raises:
        OverTimeError: It was stopped for that.
    """
    home = Home.here()
    place = _ended_before(config, home)
    if place is None:
        started = launch(config, LaunchOptions(), home=home, config_folder=Path.cwd(), notify=_quiet)
        place = started.place
        asked = threading.Event()

        def ask() -> None:
            asked.set()
            ask_to_stop(started.actor, "the trial's time limit")

        stop = threading.Timer(limit_s, ask)
        stop.daemon = True
        stop.start()
        try:
            with contextlib.suppress(LadderExhaustedError):  # that is a result: `measure_run` says so
                follow_to_end(started.actor, place, Screen(config, out=io.StringIO()), name=config.name)
        except StoppedError as stopped:
            if not asked.is_set():  # somebody else did
                raise
            raise OverTimeError.at(read_run(place).last_step, config.train.steps, limit_s) from stopped
        finally:
            stop.cancel()
    return measure_run(read_run(place), trial, steps=config.train.steps)


def measure_run(run: ReadRun, trial: Trial, *, steps: int) -> Measured:
    """A run's figures, from its rows and its journal.

    Args:
        run: The run; it has ended.
        trial: What it was.
        steps: How many it was to have.
    """
    outcome = run.record.outcome
    if outcome not in _ENDED:
        raise InternalError(f"a trial's run ended as {outcome or 'nothing'}", where=trial.id)
    rows = sorted({int(row["step"]): row for row in run.rows}.values(), key=lambda row: int(row["step"]))
    incidents = [event.step or 0 for event in run.events if event.kind == "fault.detected" and _numeric(event.data)]
    stopped = "the ladder was used up" if outcome == "exhausted" else ""
    return Measured(
        trial,
        figures_of(course_of(rows, incidents), steps=steps, stopped=stopped),
        wall_s=sum(float(row["step_s"]) for row in run.rows),
        restarts=max(0, max((event.attempt or 1 for event in run.events), default=1) - 1),
    )


def course_of(rows: list[Row], incidents: list[int]) -> Course:
    """The course of a run by its last row for each step; updates and attention logits are not in the rows."""
    return Course(
        loss=[float(row["loss"]) for row in rows],
        norm=[float(row["grad_norm"]) for row in rows],
        clipped=[row["outcome"] == "applied" and row["clipped_norm"] < row["grad_norm"] for row in rows],
        update_rms=[0.0 for _ in rows],
        flagged=[bool(row["flagged"]) for row in rows],
        incidents=incidents,
    )


def _numeric(data: Mapping[str, object]) -> bool:
    return FaultKind(str(data["kind"])).numeric


def _ended_before(config: RunConfig, home: Home) -> RunPlace | None:
    """The place of this trial's run if it has ended, so that only its result is wanted."""
    root = places.root_address(config.storage, home, _quiet)
    place = find_run(root, config.name)
    return place if place is not None and read_run(place).record.outcome in _ENDED else None


def _quiet(text: str) -> None:
    """Trials say nothing; their runs' logs do."""
    del text
