"""Leases: a command that needs the host process holds a locked file, and the kernel lets go when it dies."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stormsail.platform.home import Home
from stormsail.supervisor.host.paths import HostPaths

_SUFFIX = ".lease"


@contextmanager
def hold(home: Home) -> Iterator[None]:
    """Keep the host process of `home` alive for as long as the block runs, whether it runs already or not."""
    paths = HostPaths.of(home)
    paths.make_folders()
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    unready = paths.leases / f"{name}.new"
    lease = unready.with_suffix(_SUFFIX)
    with unready.open("w", encoding="utf-8") as file:
        # Locked before it gets the name that the host looks for: an unlocked lease is a dead one.
        fcntl.flock(file, fcntl.LOCK_EX)
        unready.rename(lease)
        try:
            yield
        finally:
            lease.unlink(missing_ok=True)


def count_leases(folder: Path) -> int:
    """How many commands hold a lease now; the files of dead ones are removed."""
    return sum(1 for path in folder.glob(f"*{_SUFFIX}") if _is_held(path))


def _is_held(path: Path) -> bool:
    try:
        with path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
