"""Where the local host process keeps its files, and that nobody else can reach them."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stormsail.platform.errors import ConfigError
from stormsail.platform.home import Home

# The kernel allows 107 bytes for the path of a unix socket.
_LONGEST_SOCKET = 100


@dataclass(frozen=True, slots=True)
class HostPaths:
    """The files of one host process; nothing is created by asking.

    Attributes:
        folder: Everything below is in it, the two noted places apart.
        lock: Held by the host process for as long as it lives.
        info: What the host process says about itself (`host.json`).
        log: Its output.
        ray_token: Secret of the local Ray cluster.
        store_credentials: Secret keys of the embedded store.
        leases: One locked file for each command that needs the host.
        control: Unix socket; in `short` if the folder's path is too long for one.
        short: Folder of this home under `/tmp`, for what needs a short path.
        ray_temp: Ray's session folders, in `short`, because Ray puts sockets there.
        ray_logs: Ray's logs of the host process before this one.
    """

    folder: Path
    lock: Path
    info: Path
    log: Path
    ray_token: Path
    store_credentials: Path
    leases: Path
    control: Path
    short: Path
    ray_temp: Path
    ray_logs: Path

    @classmethod
    def of(cls, home: Home) -> Self:
        """The paths that belong to `home`."""
        folder = home.host
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
        short = Path(f"/tmp/stormsail-{os.getuid()}") / digest  # noqa: S108 - private, see `make_folders`
        control = folder / "control.sock"
        if len(os.fsencode(control)) > _LONGEST_SOCKET:
            control = short / "control.sock"
        return cls(
            folder=folder,
            lock=folder / "host.lock",
            info=folder / "host.json",
            log=folder / "host.log",
            ray_token=folder / "ray_token",
            store_credentials=folder / "store_keys.json",
            leases=folder / "leases",
            control=control,
            short=short,
            ray_temp=short / "ray",
            ray_logs=folder / "ray_logs",
        )

    def make_folders(self) -> None:
        """Create what is missing, for this user alone.

        Raises:
            ConfigError: Somebody else owns a folder or may write to it, or the place is read-only.
        """
        for folder in (self.folder, self.leases, self.short.parent, self.short):
            _make_private(folder)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"The folder cannot be made: {error.strerror}.",
            where=str(folder),
            todo="Set STORMSAIL_HOME to a folder on a local disk that you can write to.",
        ) from error
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise ConfigError(
            "This should be a folder of yours, and is not: secrets cannot be kept there.",
            where=str(folder),
            todo="Remove it, or ask its owner to.",
        )
    if facts.st_mode & 0o077:
        folder.chmod(0o700)
