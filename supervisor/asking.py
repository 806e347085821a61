"""Asking a run's supervisor something from another command: find the run, then its actor, each with its own error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from stormsail.platform.config.dump import parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import NoSuchRunError, TryLaterError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace
from stormsail.supervisor import cluster, places
from stormsail.supervisor.reading import ReadRun, read_run
from stormsail.supervisor.run_name import actor_name

_ANSWER_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run that has begun.

    Attributes:
        home: This machine's folder.
        place: Where the run lives.
        read: What its storage says.
        config: The configuration in force.
        ray_address: The cluster that it was started at, as far as this machine remembers.
        notify: Gets a line when a wait gets long.
    """

    home: Home
    place: RunPlace
    read: ReadRun
    config: RunConfig
    ray_address: str | None
    notify: places.Notify

    def actor(self) -> Any:
        """The handle of its supervisor.

        Raises:
            NoSuchRunError: It is not running.
        """
        cluster.connect(self.config, self.home, self.notify, remembered=self.ray_address)
        try:
            return ray.get_actor(actor_name(self.place), namespace="stormsail")
        except ValueError:
            raise NoSuchRunError(
                f"run {self.place.name!r} is not running, and not finished: it was at step {self.read.last_step}",
                todo="go on with it by the same `stormsail train` command",
            ) from None


def find_run(home: Home, spoken: str, storage_url: str | None, notify: places.Notify) -> FoundRun:
    """Find a run that has begun.

    Raises:
        NoSuchRunError: There is no such run, or it has not begun.
    """
    place = places.locate(home, spoken, storage_url, notify)
    read = read_run(place)
    if not read.record.config:
        raise NoSuchRunError(
            f"run {spoken!r} has not begun: its journal is empty", todo="start it by `stormsail train`"
        )
    remembered = places.recall(home, place.name)
    return FoundRun(home, place, read, parse_dump(read.record.config), remembered[1] if remembered else None, notify)


def ask_to_stop(actor: Any, reason: str) -> None:
    """Hand over a request to stop.

    Raises:
        TryLaterError: The supervisor did not answer.
    """
    try:
        ray.get(actor.request_stop.remote(reason), timeout=_ANSWER_LIMIT_S)
    except (GetTimeoutError, RayActorError) as error:
        raise TryLaterError(
            f"the supervisor did not answer within {_ANSWER_LIMIT_S:.0f} s; it may still stop",
            todo="look with `stormsail status`, and ask again if it goes on",
        ) from error
