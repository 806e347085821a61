"""What `stormsail train` and `attach` do: launch, follow to the end, prove, and say how it ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TextIO

from stormsail.platform.config.model import RunConfig
from stormsail.platform.console import emit, styled
from stormsail.platform.errors import (
    ClusterError,
    LadderExhaustedError,
    StoppedError,
    StormsailError,
    UserCodeError,
    kind_of,
)
from stormsail.platform.home import Home
from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.runs import RunPlace
from stormsail.supervisor import places, telling
from stormsail.supervisor.follow import RayLooker, Screen, follow
from stormsail.supervisor.host.client import own_host
from stormsail.supervisor.launch import LaunchOptions, launch
from stormsail.supervisor.reading import read_record
from stormsail.supervisor.twin import digest_at, twin_of


def train(
    config: RunConfig, options: LaunchOptions, *, home: Home, config_folder: Path, notify: places.Notify, out: TextIO
) -> RunPlace:
    """Run to the end and prove what the drill asks for. Returns the run's place; raises how it ended if not well."""
    place = _to_the_end(config, options, home=home, config_folder=config_folder, notify=notify, out=out)
    if config.drill.twin_step is not None:
        prove(config, place, home=home, config_folder=config_folder, notify=notify, out=out)
    return place


def _to_the_end(
    config: RunConfig,
    options: LaunchOptions,
    *,
    home: Home,
    config_folder: Path,
    notify: places.Notify,
    out: TextIO,
    stop_step: int | None = None,
    label: str = "",
) -> RunPlace:
    try:
        started = launch(config, options, home=home, config_folder=config_folder, notify=notify, stop_step=stop_step)
    except KeyboardInterrupt:
        emit(f"whether the run had begun by then is told by `stormsail status {config.name}`")
        raise
    follow_to_end(started.actor, started.place, Screen(config, label=label, out=out), name=config.name)
    return started.place


def follow_to_end(actor: Any, place: RunPlace, screen: Screen, *, name: str) -> None:
    """Follow a supervisor until the run is over; raises how it ended if not well."""
    try:
        error = follow(RayLooker(actor, own_host(Home.here())), screen)
    except KeyboardInterrupt:
        emit(f"the run goes on without this terminal: `stormsail attach {name}`, `stormsail stop {name}`")
        raise
    except ConnectionError as lost:
        if not read_record(place).outcome:
            raise ClusterError(
                f"the supervisor has not answered for a while: {str(lost).splitlines()[0]}",
                todo=f"look again with `stormsail attach {name}`; go on with the same `stormsail train` command",
            ) from lost
        raise_outcome(place, None)
        return
    actor.retire.remote()
    raise_outcome(place, error)


def raise_outcome(place: RunPlace, error: StormsailError | None) -> None:
    """Turn the way a run ended into the error that stands for it; returns if it ended well."""
    if error is not None:
        raise error
    record = read_record(place)
    if record.outcome == "finished":
        return
    last = _ending(Journal.read(place.store()))
    if record.outcome == "stopped":
        raise StoppedError(
            telling.tell(last) or "stopped", todo=f"go on with `stormsail train`; run {place.name!r} is kept"
        )
    if record.outcome == "exhausted":
        tried = last.data.get("tried", True)  # an older journal does not say
        raise LadderExhaustedError(
            f"{'every repair was tried' if tried else 'a person must look'}: {last.data['reason']}",
            todo=f"everything is kept; read `stormsail report {place.name}`",
        )
    raise _failure(last, record.exit_code, place)


def _failure(last: Event, exit_code: int, place: RunPlace) -> StormsailError:
    what = str(last.data["error"])
    todo = f"the full logs are in {Home.here().run(place.name) / str(place.incarnation) / 'logs'}"
    if exit_code == UserCodeError.exit_code:
        return UserCodeError(what, todo=todo, details=str(last.data.get("details", "")))
    return kind_of(exit_code)(what, todo=todo)


def _ending(events: list[Event]) -> Event:
    endings = [
        event for event in events if event.kind in ("run.finished", "run.stopped", "run.exhausted", "run.failed")
    ]
    return endings[-1]


def prove(
    config: RunConfig, place: RunPlace, *, home: Home, config_folder: Path, notify: places.Notify, out: TextIO
) -> None:
    """Run the undisturbed twin up to the proof's step and compare the state, bit for bit, by digest."""
    step = config.drill.twin_step
    if step is None:
        return
    events = Journal.read(place.store())
    if any(event.kind == "drill.twin" for event in events):
        return
    emit(styled(f"proof: an undisturbed twin runs to step {step}", "bold", stream=out), stream=out)
    twin = _to_the_end(
        twin_of(config),
        LaunchOptions(fresh=True),
        home=home,
        config_folder=config_folder,
        notify=notify,
        out=out,
        stop_step=step,
        label="twin: ",
    )
    mine = digest_at(events, step)
    other = digest_at(Journal.read(twin.store()), step)
    journal = Journal.open(
        place.store(), home.run(config.name) / str(place.incarnation) / "proof.jsonl", writer="proof"
    )
    event = journal.append(
        "drill.twin",
        time_s=time.time(),
        generation=events[-1].generation,
        step=step,
        attempt=events[-1].attempt,
        data={"digest": mine, "twin_digest": other, "identical": mine is not None and mine == other},
    )
    emit(f"{telling.clock(event.time_s)} {telling.tell(event)}", stream=out)
