"""What a run's name means: a new run, one to go on with, or one that somebody else owns."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from stormsail.platform.config.dump import parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import CheckpointError, PreconditionFailedError, RunExistsError
from stormsail.platform.lease import live_owner
from stormsail.platform.runs import RunPlace, begin_incarnation, find_run, no_such_run
from stormsail.platform.storage.store import ObjectStore, StoreAddress
from stormsail.supervisor import telling
from stormsail.supervisor.ledger import Snapshot
from stormsail.supervisor.reading import read_record
from stormsail.supervisor.record import Record

_ANSWER_LIMIT_S = 60.0


def actor_name(place: RunPlace) -> str:
    """The supervisor's actor name. Of two incarnations only one can live, so the number is not part of it."""
    return f"run:{place.name}"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name stands for.

    Attributes:
        place: Where to run.
        stored: What is known of the run that goes on there; None for a new one.
        begun: Whether the place was made just now.
    """

    place: RunPlace
    stored: Record | None
    begun: bool


def check_resumable(store: ObjectStore, root: StoreAddress, name: str) -> None:
    """Make sure that there is something to go on with, before anything is written or started.

    Args:
        store: The one at `root`.
        root: Where runs live.
        name: The run's name.

    Raises:
        NoSuchRunError: There is no such run.
        CheckpointError: It has no checkpoint.
    """
    place = find_run(root, name)
    if place is None:
        raise no_such_run(store, name)
    if not read_record(place).commits:
        raise CheckpointError(
            f"run {name!r} has no checkpoint to go on from",
            where=place.address.url,
            todo="start it without --must-resume",
        )


def resolve(root: StoreAddress, config: RunConfig, *, fresh: bool, take_over: bool) -> Meaning:
    """Decide what the name of a run stands for. The process must be connected to Ray.

    Args:
        root: Where runs live.
        config: The run as asked for.
        fresh: Begin a new incarnation, whatever is there.
        take_over: Pass an owner that has not been heard of since its lease expired.

    Raises:
        RunExistsError: The name has a live owner, or its run is finished.
    """
    place = find_run(root, config.name)
    if place is None:
        return Meaning(_begin(root, config.name), None, begun=True)
    _refuse_live_owner(place)
    _refuse_owner_elsewhere(place, take_over=take_over)
    if fresh:
        return Meaning(_begin(root, config.name), None, begun=True)
    record = read_record(place)
    if not record.config:
        return Meaning(place, None, begun=False)
    if record.outcome == "finished" and not _extends(record, config):
        steps = parse_dump(record.config).train.steps
        raise RunExistsError(
            f"run {config.name!r} is finished ({steps} steps)",
            where=place.address.url,
            todo=f"extend it with `--set train.steps={steps * 2}`, choose another name with `--set name=...`, "
            "or begin anew with `--fresh`",
        )
    return Meaning(place, record, begun=False)


def _begin(root: StoreAddress, name: str) -> RunPlace:
    try:
        return begin_incarnation(root, name)
    except PreconditionFailedError as error:
        raise RunExistsError(
            f"run {name!r} was started by somebody else at this very moment",
            where=root.url,
            todo=f"follow it with `stormsail attach {name}`",
        ) from error


def _refuse_live_owner(place: RunPlace) -> None:
    snapshot = _look_at_owner(place)
    if snapshot is None:
        return
    claims = [event for event in snapshot.events if event.kind in ("run.started", "run.continued")]
    owner = (
        f"owned by {claims[-1].data['owner']} since {telling.clock(claims[-1].time_s)}" if claims else "just started"
    )
    raise RunExistsError(
        f"run {place.name!r} is live: {owner}, at step {snapshot.step}",
        where=place.address.url,
        todo=f"follow it with `stormsail attach {place.name}`, end it with `stormsail stop {place.name}`, "
        "or choose another name with `--set name=...`",
    )


def _look_at_owner(place: RunPlace) -> Snapshot | None:
    """What the run's supervisor shows; None if there is none, or none any more."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    pause, until = threading.Event(), time.monotonic() + _ANSWER_LIMIT_S
    while True:
        try:
            actor = ray.get_actor(actor_name(place), namespace="stormsail")
        except ValueError:
            return None
        try:
            snapshot: Snapshot = ray.get(actor.look.remote((0, 0)), timeout=_ANSWER_LIMIT_S)
            if not snapshot.over:
                return snapshot
            ray.get(actor.retire.remote(), timeout=_ANSWER_LIMIT_S)
        except (GetTimeoutError, RayActorError) as error:
            # It leaves at this moment, because its run is over, or Ray is starting it again.
            if time.monotonic() < until:
                pause.wait(0.5)
                continue
            raise RunExistsError(
                f"run {place.name!r} has a supervisor that does not answer; Ray may be starting it again",
                where=place.address.url,
                todo=f"try `stormsail attach {place.name}` in a minute",
            ) from error
        _wait_until_gone(place)
        return None


def _refuse_owner_elsewhere(place: RunPlace, *, take_over: bool) -> None:
    """The same store can serve several clusters: the lease tells of an owner that this one does not know."""
    now_s = time.time()
    held = live_owner(place.store(), now=now_s)
    if held is not None and not (take_over and held.is_ahead(now_s)):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(held.started_s))
        raise RunExistsError(
            f"run {place.name!r} is owned by {held.owner.host}, pid {held.owner.pid}, since {since}",
            where=place.address.url,
            todo=f"follow it there with `stormsail attach {place.name}`, or choose another name with `--set name=...`",
        )


def _wait_until_gone(place: RunPlace) -> None:
    import ray

    pause = threading.Event()
    for _ in range(200):
        try:
            ray.get_actor(actor_name(place), namespace="stormsail")
        except ValueError:
            return
        pause.wait(0.1)
    raise RunExistsError(
        f"the supervisor of the last run called {place.name!r} does not leave", todo="try again in a minute"
    )


def _extends(record: Record, config: RunConfig) -> bool:
    return config.train.steps > parse_dump(record.config).train.steps
