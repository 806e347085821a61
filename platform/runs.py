"""Run names and what is behind them: a name points at its newest incarnation; `--fresh` begins another.

Nothing is moved or deleted by a fresh start: the older incarnation stays where it is, reachable as `NAME@2`.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from dataclasses import dataclass

from stormsail.platform.errors import (
    ConfigError,
    NoSuchRunError,
    ObjectMissingError,
    PreconditionFailedError,
    StorageError,
)
from stormsail.platform.sealed_line import seal_line, unseal_line
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import ObjectStore, StoreAddress

_POINTER = "incarnation.json"
_NAME = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]{0,62})(?:@(?P<number>[1-9][0-9]*))?$")


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where one incarnation of a run lives.

    Attributes:
        name: The run's name.
        incarnation: Counts fresh starts, from 1.
        address: The run's own store.
    """

    name: str
    incarnation: int
    address: StoreAddress

    def store(self) -> ObjectStore:
        """Open the run's store."""
        return open_store(self.address)


def find_run(root: StoreAddress, spoken: str) -> RunPlace | None:
    """The place that a name (or `NAME@NUMBER`) stands for, or None if there is no such run.

    Raises:
        ConfigError: This can be no run's name.
        StorageError: The store did not answer; that is never taken for "no run".
    """
    name, number = split_name(spoken)
    newest = _newest(open_store(root), name)
    if newest is None or (number is not None and number > newest):
        return None
    return _place(root, name, number or newest)


def require_run(root: StoreAddress, spoken: str) -> RunPlace:
    """As `find_run`, but a run that is not there is an error that names near ones."""
    place = find_run(root, spoken)
    if place is None:
        raise no_such_run(open_store(root), spoken)
    return place


def begin_incarnation(root: StoreAddress, name: str) -> RunPlace:
    """Point the name at a new, empty incarnation; of two that do so at once, one gets `PreconditionFailedError`."""
    store = open_store(root)
    key = f"{name}/{_POINTER}"
    try:
        body, info = store.get_with_info(key)
    except ObjectMissingError:
        store.put(key, _body(1), if_none_match=True)
        return _place(root, name, 1)
    number = _number(body, f"{store.url}/{key}") + 1
    store.put(key, _body(number), if_match=info.etag)
    return _place(root, name, number)


def withdraw_incarnation(root: StoreAddress, place: RunPlace) -> None:
    """Point the name at the incarnation before, if nobody has begun another one since; for one that never started."""
    store = open_store(root)
    key = f"{place.name}/{_POINTER}"
    body, info = store.get_with_info(key)
    if place.incarnation > 1 and _number(body, f"{store.url}/{key}") == place.incarnation:
        with contextlib.suppress(PreconditionFailedError):  # somebody has, at this moment
            store.put(key, _body(place.incarnation - 1), if_match=info.etag)


def list_runs(store: ObjectStore) -> list[str]:
    """Names of all runs in the store, sorted."""
    ending = f"/{_POINTER}"
    return sorted(info.key.removesuffix(ending) for info in store.list() if info.key.endswith(ending))


def no_such_run(store: ObjectStore, spoken: str) -> NoSuchRunError:
    """The error for a name that nothing is under, with the nearest names that there are."""
    names = list_runs(store)
    near = difflib.get_close_matches(spoken, names, n=1)
    known = f"; runs here: {', '.join(names[:10])}" if names else "; there are no runs here"
    return NoSuchRunError(
        f"no run is called {spoken!r}" + (f", did you mean {near[0]!r}?" if near else known),
        where=store.url,
        todo="start it with `stormsail train`, or point --storage at the store that has it",
    )


def split_name(spoken: str) -> tuple[str, int | None]:
    """`NAME` or `NAME@NUMBER` in its parts."""
    match = _NAME.match(spoken)
    if match is None:
        raise ConfigError(
            f"{spoken!r} is not a run name", todo="names are a-z, 0-9, '.', '_', '-', at most 63 characters"
        )
    number = match["number"]
    return match["name"], int(number) if number else None


def _newest(store: ObjectStore, name: str) -> int | None:
    key = f"{name}/{_POINTER}"
    try:
        return _number(store.get(key), f"{store.url}/{key}")
    except ObjectMissingError:
        return None


def _place(root: StoreAddress, name: str, number: int) -> RunPlace:
    return RunPlace(name, number, root.child(f"{name}/{number}"))


def _body(number: int) -> bytes:
    return seal_line(json.dumps({"number": number}).encode())


def _number(body: bytes, where: str) -> int:
    """What a pointer says. Another number would be another run, and mostly an empty one, so none is guessed.

    Raises:
        StorageError: It is damaged in more than one bit.
    """
    try:
        return int(json.loads(unseal_line(body))["number"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"which incarnation of the run is the newest cannot be read: {error}",
            where=where,
            todo="restore the object from a backup; the folders beside it are the incarnations, by their numbers",
        ) from error
