"""What the host process tells about itself: `host.json`, and the answer to most requests."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.host.identity import ProcessIdentity


@dataclass(frozen=True, slots=True)
class HostInfo:
    """One host process and what it runs; holds no secret, only the names of files that do.

    Attributes:
        identity: The process.
        runtime: Python, Ray and Stormsail that it runs with: a driver must have the same.
        started_s: When it started, in seconds since the epoch.
        log_file: Its output.
        ray_address: `127.0.0.1:port` of the local Ray, or None while nobody has asked for it.
        ray_cpus: CPUs that this Ray hands out (0 without Ray).
        ray_token_file: Secret that connects to it (mode 0600).
        ray_session: Ray's session folder, with its logs.
        store_address: The local store, or None while nobody has asked for it.
        store_kind: `embedded`, or `file` where there is no embedded server for this system ("" without store).
    """

    identity: ProcessIdentity
    runtime: str
    started_s: float
    log_file: str
    ray_address: str | None = None
    ray_cpus: int = 0
    ray_token_file: str | None = None
    ray_session: str | None = None
    store_address: StoreAddress | None = None
    store_kind: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """The opposite of `to_json`.

        Raises:
            KeyError, TypeError: The record is of another version of Stormsail.
        """
        address = record["store_address"]
        rebuilt = {
            "identity": ProcessIdentity(**record["identity"]),
            "store_address": None if address is None else StoreAddress(**address),
        }
        return cls(**{**record, **rebuilt})


def runtime_label() -> str:
    """Python, Ray and Stormsail of this process; two processes can share a Ray cluster if theirs are equal."""
    versions = " ".join(f"{name} {metadata.version(name)}" for name in ("ray", "stormsail"))
    return f"{sys.prefix}: python {sys.version.partition(' ')[0]} {versions}"


def read_info(path: Path) -> HostInfo | None:
    """What `host.json` says, or None if it is missing, unreadable, or of a process that is no more."""
    try:
        info = HostInfo.from_json(json.loads(path.read_bytes()))
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
        return None
    return info if info.identity.is_elsewhere() or info.identity.is_alive() else None


def write_info(path: Path, info: HostInfo) -> None:
    """Replace `host.json` (mode 0600) at once, so that no reader sees half of it."""
    part = path.with_suffix(f".{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(info.to_json(), file, indent=2)
    part.replace(path)
