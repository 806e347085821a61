"""Checkpoints in a folder on a disk that is full, read-only, or fails: whole or not there, with one clear error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stormsail.platform.checkpoint.reader import scan_commits, verify
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.errors import StorageDeniedError, StorageError, StorageFullError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.local import LocalStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

ROOT = Path(__file__).parents[3]
OLD, REF = CheckpointRef(1, 10), CheckpointRef(1, 20)


class Disk:
    """Real files on a disk that takes so many bytes more; a write that does not fit is done in part, as by a kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.error = errno.ENOSPC
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        if self.left is None:
            return self._write(handle, data)
        size = min(len(data), self.left)
        if size == 0 and len(data):
            raise OSError(self.error, os.strerror(self.error))
        self.left -= size
        return self._write(handle, memoryview(data)[:size])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def store(kit: Kit, tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "run")
    ensure_format(made)
    kit.save(made, kit.state(1), OLD)
    return made


def test_a_disk_that_fills_up_at_any_byte_leaves_the_older_checkpoint(
    kit: Kit, store: LocalStore, tmp_path: Path, disk: Disk
) -> None:
    used = sum(info.size_bytes for info in store.list() if "000000000010" in info.key)
    died = 0
    for attempt, room in enumerate(range(0, used + 900, 800)):
        ref = CheckpointRef(attempt + 2, 20)
        disk.left = room
        try:
            kit.save(store, kit.state(2), ref)
        except StorageFullError as error:
            assert "No space left" in error.what  # noqa: PT017 - room enough is a right answer too
            died += 1
        else:
            assert verify(store, ref) == []
        disk.left = None
        assert verify(store, OLD) == []
        whole = [item.ref for item in scan_commits(store).commits]
        assert whole == [OLD] if died == attempt + 1 else ref in whole
        assert not list(tmp_path.rglob("~part-*"))
    assert 0 < died < attempt + 1


def test_room_that_was_made_is_used_by_the_same_save(kit: Kit, store: LocalStore, disk: Disk) -> None:
    disk.left = 2000
    with pytest.raises(StorageFullError):
        kit.save(store, kit.state(2), REF)
    disk.left = None
    kit.save(store, kit.state(2), REF)
    assert kit.same(kit.restore(store, REF, 3), kit.state(2))


def test_a_full_disk_can_be_read_and_emptied(kit: Kit, store: LocalStore, disk: Disk) -> None:
    kit.save(store, kit.state(2), REF)
    disk.left = 0
    assert kit.same(kit.restore(store, OLD, 1), kit.state(1))
    for info in list(store.list("packs/")):
        store.delete(info.key)
    assert list(store.list("packs/")) == []


REFUSALS: dict[int, tuple[type[StorageError], str]] = {
    errno.EDQUOT: (StorageFullError, "No space left"),
    errno.EROFS: (StorageDeniedError, "Not allowed by the file system"),
    errno.EIO: (StorageUnavailableError, "does not answer"),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_disk_that_refuses_says_why(kit: Kit, store: LocalStore, disk: Disk, code: int) -> None:
    disk.left, disk.error = 0, code
    kind, words = REFUSALS[code]
    with pytest.raises(kind, match=words) as caught:
        kit.save(store, kit.state(2), REF)
    assert caught.value.todo
    disk.left = None
    assert [item.ref for item in scan_commits(store).commits] == [OLD]


SCRIPT = """
import sys
from pathlib import Path
from tests.platform.checkpoint.conftest import Kit
from stormsail.platform.checkpoint.reader import scan_commits, verify
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.errors import StorageDeniedError, StorageFullError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.local import LocalStore
import subprocess

kit, root = Kit(), Path(sys.argv[1])
store = LocalStore(root / "run")
ensure_format(store)
shapes = {"w": (20_000,)}
saved = []
try:
    for step in range(10, 200, 10):
        kit.save(store, kit.state(step, shapes), CheckpointRef(1, step), shapes=shapes)
        saved.append(step)
except StorageFullError as error:
    print("full:", error.what)
assert 1 <= len(saved) < 15, saved
assert [item.step for item in scan_commits(store).commits] == saved
assert all(verify(store, item) == [] for item in scan_commits(store).commits)
subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
try:
    kit.save(store, kit.state(1, shapes), CheckpointRef(2, 10), shapes=shapes)
except StorageDeniedError as error:
    print("read-only:", error.what)
assert kit.same(kit.restore(store, CheckpointRef(1, saved[-1]), 1, shapes=shapes), kit.state(saved[-1], shapes))
"""


@pytest.mark.slow
def test_a_real_file_system_of_two_megabytes_fills_up_and_turns_read_only(tmp_path: Path) -> None:
    """In a mount namespace of its own, so that nothing is left of it."""
    command = f"mount -t tmpfs -o size=2m tmpfs {tmp_path} && exec {sys.executable} -c '{SCRIPT}' {tmp_path}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "full: No space left" in done.stdout
    assert "read-only: Not allowed by the file system" in done.stdout
