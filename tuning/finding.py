"""Finds a sweep by its name, in the store that it lives in."""

from __future__ import annotations

from collections.abc import Callable

from stormsail.platform.config.infrastructure import StorageSection
from stormsail.platform.errors import NoSuchRunError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace, find_run, list_runs
from stormsail.platform.storage.open import open_store
from stormsail.supervisor import places
from stormsail.tuning.sweep import FOLDER, remembered_as


def find_sweep(home: Home, spoken: str, storage_url: str | None, notify: Callable[[str], None]) -> RunPlace:
    """The place of a sweep.

    Args:
        home: This machine's folder.
        spoken: `NAME` or `NAME@NUMBER`.
        storage_url: Where to look; None: what is remembered, or else the embedded store.
        notify: Gets a line when a wait gets long.

    Raises:
        NoSuchRunError: There is no such sweep.
    """
    remembered = places.recall(home, remembered_as(spoken.partition("@")[0]))
    storage = StorageSection(url=storage_url) if storage_url else remembered[0] if remembered else StorageSection()
    root = places.root_address(storage, home, notify).child(FOLDER)
    place = find_run(root, spoken)
    if place is None:
        known = ", ".join(list_runs(open_store(root))) or "none"
        raise NoSuchRunError(
            f"no sweep is called {spoken!r}; sweeps here: {known}",
            where=root.url,
            todo="start it with `stormsail sweep FILE`, or point --storage at the store that has it",
        )
    return place
