"""Where runs are found again: which store a run lives in, remembered in its local folder, secrets apart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from stormsail.platform.config.infrastructure import StorageSection
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace, require_run, split_name
from stormsail.platform.storage.open import address_from_config
from stormsail.platform.storage.store import StoreAddress

_FILE = "place.json"
EMBEDDED = "embedded"
Notify = Callable[[str], None]


def root_address(storage: StorageSection, home: Home, notify: Notify) -> StoreAddress:
    """The store that a storage section means; starts the embedded one if it is meant and not running.

    Args:
        storage: The section.
        home: Where the local host process lives.
        notify: Gets a line when a wait gets long.
    """
    embedded = None
    if storage.url == EMBEDDED:
        from stormsail.supervisor.host.client import ensure_host

        info = ensure_host(home, ray=False, store=True, num_cpus=None, notify=notify)
        embedded = info.store_address
        if info.store_kind == "file":
            notify(f"no embedded S3 server for this system: using the folder {home.store} instead")
    return address_from_config(storage, embedded)


def remember(home: Home, name: str, storage: StorageSection, ray_address: str | None) -> None:
    """Note where a run lives, so that other commands need only its name."""
    folder = home.run(name)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"storage": storage.model_dump(mode="json"), "ray_address": ray_address}
    part = folder / f"{_FILE}.{os.getpid()}"
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(folder / _FILE)


def recall(home: Home, name: str) -> tuple[StorageSection, str | None] | None:
    """What `remember` noted, or None."""
    path: Path = home.run(name) / _FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return StorageSection.model_validate(record["storage"]), record["ray_address"]


def locate(home: Home, spoken: str, storage_url: str | None, notify: Notify) -> RunPlace:
    """Find a run by what a person typed.

    Args:
        home: Where this machine remembers its runs.
        spoken: `NAME` or `NAME@NUMBER`.
        storage_url: Where to look, or None for what is remembered (or else the embedded store).
        notify: Gets a line when a wait gets long.

    Raises:
        NoSuchRunError: There is no such run in that store.
    """
    name, _ = split_name(spoken)
    remembered = recall(home, name)
    if storage_url is not None:
        storage = StorageSection(url=storage_url)
    elif remembered is not None:
        storage = remembered[0]
    else:
        storage = StorageSection()
    return require_run(root_address(storage, home, notify), spoken)
