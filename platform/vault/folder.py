"""Where a run keeps state in a node's shared memory: one folder per run and node, with a budget.

    /dev/shm/stormsail-UID/HOME/RUN-NODE/   ~vault      locked by the vault's process for as long as it lives
                                            ~budget     bytes that all of it may take
                                            slots/      snapshots of ranks (`slots.py`)
                                            objects/    an object store for everything else
                                            copies/     the same of another node: its gradient log

HOME and RUN are hashes of the home folder and of the run's store. What nobody holds any more is stale, and removed by
whoever comes next.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stormsail.platform.errors import ConfigError, StorageError
from stormsail.platform.home import Home
from stormsail.platform.storage.local_files import told_clearly
from stormsail.platform.storage.shared import SharedStore

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders below are private, see `make_private`
HELD = "~vault"
LEASE = ".lease"
_BUDGET = "~budget"
_NODE_DIGITS = 12
_COPIES_SHARE = 0.125  # of the budget, for another node's log, so that this node's own always has as much


@dataclass(frozen=True, slots=True)
class VaultFolder:
    """The folder of one run on one node; nothing is created by asking.

    Attributes:
        path: The folder itself.
    """

    path: Path

    @classmethod
    def of(cls, home: Home, run_url: str, node: str, *, root: Path = SHARED_MEMORY) -> Self:
        """The folder that belongs to a run and a node.

        Args:
            home: Whose.
            run_url: The address of the run's store.
            node: Ray's id of the node, in hex.
            root: Where shared memory is mounted.
        """
        return cls(home_folder(home, root=root) / f"{_short(run_url)}-{node[:_NODE_DIGITS]}")

    @property
    def slots(self) -> Path:
        """Snapshots of ranks."""
        return self.path / "slots"

    @property
    def objects(self) -> Path:
        """Root of the object store."""
        return self.path / "objects"

    @property
    def copies(self) -> Path:
        """Root of the object store with another node's log."""
        return self.path / "copies"

    def make(self, budget_bytes: int) -> None:
        """Create what is missing, for this user alone, and set the budget.

        Raises:
            ConfigError: Somebody else owns a folder.
            StorageError: There is no shared memory, or it is full.
        """
        with told_clearly(str(self.path)):
            for folder in (self.path.parent.parent, self.path.parent, self.path, self.slots, self.objects, self.copies):
                make_private(folder)
            partial = self.path / f"{_BUDGET}.{os.getpid()}"
            partial.write_text(str(budget_bytes), encoding="ascii")
            partial.replace(self.path / _BUDGET)

    @property
    def budget_bytes(self) -> int:
        """Bytes that all of it may take; 0 where there is no vault."""
        try:
            return int((self.path / _BUDGET).read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def used_bytes(self) -> int:
        """Bytes that it takes now."""
        return sum(_size(path) for path in _files(self.path))

    def free_bytes(self) -> int:
        """What is left of the budget; below 0 where it was lowered, or something is being written that will be refused."""
        return self.budget_bytes - self.used_bytes()

    def store(self) -> SharedStore | None:
        """An object store for everything but snapshots, or None where there is no vault.

        It can be opened in any process of the node, and holds what it was given until the run ends or the node dies.
        """
        return SharedStore(self.objects, free_bytes=self.free_bytes) if self.budget_bytes else None

    def copies_store(self) -> SharedStore | None:
        """An object store for what another node holds too, or None where there is no vault."""
        return SharedStore(self.copies, free_bytes=self.room_for_copies) if self.budget_bytes else None

    def room_for_copies(self) -> int:
        """Bytes that may still be copied here from another node."""
        taken = sum(_size(path) for path in _files(self.copies))
        return min(int(self.budget_bytes * _COPIES_SHARE) - taken, self.free_bytes())

    def stores(self) -> tuple[SharedStore, ...]:
        """Both object stores, this node's own first; none where there is no vault."""
        return tuple(store for store in (self.store(), self.copies_store()) if store is not None)

    def hold(self) -> int | None:
        """Say that this process keeps the vault, for as long as the returned handle is open; None if another does."""
        return _take_lock(self.path / HELD)

    @property
    def is_held(self) -> bool:
        """Whether a vault's process, or a worker with slots here, is alive."""
        return any(_is_locked(path) for path in (self.path / HELD, *self.slots.glob(f"*{LEASE}")))

    def remove(self) -> None:
        """Unlink everything; who has parts of it mapped keeps those until it lets go."""
        shutil.rmtree(self.path, ignore_errors=True)


def home_folder(home: Home, *, root: Path = SHARED_MEMORY) -> Path:
    """All that a home has in this node's shared memory."""
    return root / f"stormsail-{os.getuid()}" / _short(str(home.path))


def sweep(home: Home, *, now_s: float, grace_s: float, root: Path = SHARED_MEMORY) -> list[Path]:
    """Remove the folders that no process holds any more, and return them.

    Args:
        home: Whose.
        now_s: Seconds since the epoch.
        grace_s: Younger ones are left alone: a vault that has just died comes back within seconds.
        root: Where shared memory is mounted.
    """
    removed = []
    parent = home_folder(home, root=root)
    for path in sorted(parent.glob("*-*")):
        folder = VaultFolder(path)
        if not folder.is_held and _age_s(path, now_s) >= grace_s:
            folder.remove()
            removed.append(path)
    if parent.is_dir() and not any(parent.iterdir()):
        parent.rmdir()
    return removed


def make_private(folder: Path) -> None:
    """Create a folder for this user alone.

    Raises:
        ConfigError: Somebody else owns it, or it is no folder.
        OSError: It cannot be made.
    """
    folder.mkdir(exist_ok=True, mode=0o700)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise ConfigError(
            "This should be a folder of yours, and is not: state cannot be kept there.",
            where=str(folder),
            todo="Remove it, or ask its owner to.",
        )
    if facts.st_mode & 0o077:
        folder.chmod(0o700)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _age_s(path: Path, now_s: float) -> float:
    """Seconds since anything in the folder changed last."""
    times = [_changed_s(found) for found in (path, *_files(path))]
    return now_s - max(times, default=0.0)


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def _size(path: Path) -> int:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0
    return max(facts.st_size, facts.st_blocks * 512)


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _take_lock(path: Path) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def shared_memory_bytes(root: Path = SHARED_MEMORY) -> int:
    """Free bytes of this node's shared memory.

    Raises:
        StorageError: There is none.
    """
    try:
        facts = os.statvfs(root)
    except OSError as error:
        raise StorageError(
            f"This node has no shared memory at {root}: {error.strerror}",
            where=str(root),
            todo="Mount a tmpfs there, or set checkpoint.vault_gib to 0.",
        ) from error
    return facts.f_bavail * facts.f_frsize
