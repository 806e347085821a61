"""The faithful kind of trial: a Stormsail run with its TorchTrainer, ZeRO-3, mixed precision and ladder.

`Tuner` takes no trainer any more, so a trial is a function that launches a run as `stormsail train` does, waits for its
end, and reads the result from the run's storage. A trial whose process died finds its run under its name and goes on
with it. A run whose ladder was used up by its numbers has diverged. One that a fault ended, or whose ladder faults of
machines used up, is no result: it is raised, and so retried; the latter in a new incarnation, with a whole ladder.
"""

from __future__ import annotations

import contextlib
import io
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import InternalError, LadderExhaustedError, StoppedError
from stormsail.platform.home import Home
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import FaultKind
from stormsail.platform.runs import find_run
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
_APPLIED = "applied"


def run_supervised(config: RunConfig, trial: Trial, *, limit_s: float) -> Measured:
    """Run a trial as a supervised run, or go on with it.

    Must be called in a process that is connected to Ray.

    Args:
        config: The trial as a run.
        trial: The trial.
        limit_s: Seconds after which the run is asked to stop; it stops after its step, with a checkpoint to go on from.

    Raises:
        OverTimeError: It was stopped for that.
        InternalError: It has no result: a fault ended it, or used its ladder up.
    """
    home = Home.here()
    before = _found(config, home)
    steps = config.train.steps
    place = None if before is None or _no_result(before, steps) else before.place
    if place is None:
        # A run that has ended without a result is begun anew: its ladder is used up, or rows of it are lost.
        options = LaunchOptions(fresh=before is not None and before.record.outcome in _ENDED)
        started = launch(config, options, home=home, config_folder=Path.cwd(), notify=_quiet)
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
            raise OverTimeError.at(read_run(place).last_step, steps, limit_s) from stopped
        finally:
            stop.cancel()
    return measure_run(read_run(place), trial, steps=steps)


def measure_run(run: ReadRun, trial: Trial, *, steps: int) -> Measured:
    """A run's figures, from its rows and its journal.

    Args:
        run: The run; it has ended.
        trial: What it was.
        steps: How many it was to have.

    Raises:
        InternalError: It has no result: a fault ended it, or used its ladder up, or rows of it are lost.
    """
    missing = _no_result(run, steps)
    if missing:
        raise InternalError(missing, where=trial.id)
    rows = sorted({int(row["step"]): row for row in run.rows}.values(), key=lambda row: int(row["step"]))
    incidents = [event.step or 0 for event in run.events if event.kind == "fault.detected" and _numeric(event.data)]
    stopped = "the ladder was used up" if run.record.outcome == "exhausted" else ""
    return Measured(
        trial,
        figures_of(course_of(rows, incidents, healed=not stopped), steps=steps, stopped=stopped),
        wall_s=sum(float(row["step_s"]) for row in run.rows),
        restarts=max(0, max((event.attempt or 1 for event in run.events), default=1) - 1),
    )


def course_of(rows: list[Row], incidents: list[int], *, healed: bool) -> Course:
    """The course of a run by its last row for each step; updates and attention logits stand in sampled rows only.

    Args:
        rows: One for each step, ascending.
        incidents: Steps of its numeric faults.
        healed: Whether the run got over all of them. A step without an update, such as one that was dropped for a
            non-finite loss, has then moved nothing, and counts with the last finite loss before it.
    """
    return Course(
        loss=_losses(rows) if healed else [float(row["loss"]) for row in rows],
        norm=[float(row["grad_norm"]) for row in rows],
        clipped=[row["outcome"] == _APPLIED and row["clipped_norm"] < row["grad_norm"] for row in rows],
        update_rms=[_value(row, "update.rms") or 0.0 for row in rows],
        flagged=[bool(row["flagged"]) for row in rows],
        incidents=incidents,
        logits=[
            (place, logit)
            for place, row in enumerate(rows)
            if (logit := _value(row, "attention.max_logit")) is not None
        ],
    )


def _value(row: Row, name: str) -> float | None:
    found = row.get("values", {}).get(name)
    return None if found is None else float(found)


def _losses(rows: list[Row]) -> list[float]:
    losses: list[float] = []
    for row in rows:
        loss = float(row["loss"])
        carried = row["outcome"] != _APPLIED and not math.isfinite(loss) and losses
        losses.append(losses[-1] if carried else loss)
    return losses


def _no_result(run: ReadRun, steps: int) -> str:
    """Why a run is no result, or "": it has run all of its steps, or its numbers have used the ladder up."""
    outcome = run.record.outcome
    if outcome not in _ENDED:
        return f"a trial's run ended as {outcome or 'nothing'}"
    if outcome == "exhausted":
        return "" if _numbers_used_it_up(run.events) else "a fault used the ladder up"
    known = len({int(row["step"]) for row in run.rows})
    return "" if known >= steps else f"of a finished trial's {steps} steps only {known} have a row"


def _numbers_used_it_up(events: Sequence[Event]) -> bool:
    """Whether the fault that the ladder had no answer to was one of numbers."""
    last: Event | None = None
    used_it_up: Event | None = None
    for event in events:
        if event.kind == "fault.detected":
            last = event
        elif event.kind == "run.exhausted":
            used_it_up = last
    return used_it_up is not None and _numeric(used_it_up.data)


def _numeric(data: Mapping[str, object]) -> bool:
    return FaultKind(str(data["kind"])).numeric


def _found(config: RunConfig, home: Home) -> ReadRun | None:
    """This trial's run, if an earlier process began it."""
    place = find_run(places.root_address(config.storage, home, _quiet), config.name)
    return None if place is None else read_run(place)


def _quiet(text: str) -> None:
    """Trials say nothing; their runs' logs do."""
    del text
