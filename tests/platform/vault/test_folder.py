"""A run's folder in shared memory: private, within its budget, and removed once nobody holds it."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from stormsail.platform.errors import StorageError
from stormsail.platform.home import Home
from stormsail.platform.vault.folder import (
    LEASE,
    VaultFolder,
    home_folder,
    shared_memory_bytes,
    sweep,
)

NODE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    made = tmp_path / "shm"
    made.mkdir()
    return made


def vault(home: Home, shared: Path, run: str = "s3://bucket/run/1", node: str = NODE) -> VaultFolder:
    made = VaultFolder.of(home, run, node, root=shared)
    made.make(1 << 20)
    return made


def test_runs_nodes_and_homes_have_folders_of_their_own(home: Home, shared: Path) -> None:
    folders = {
        VaultFolder.of(home, "file:///a", NODE, root=shared).path,
        VaultFolder.of(home, "file:///b", NODE, root=shared).path,
        VaultFolder.of(home, "file:///a", "f" * 32, root=shared).path,
        VaultFolder.of(Home(home.path / "other"), "file:///a", NODE, root=shared).path,
    }
    assert len(folders) == 4
    assert not any(path.exists() for path in folders)


def test_nobody_else_can_look_into_it(home: Home, shared: Path) -> None:
    made = vault(home, shared)
    for folder in (made.path, made.path.parent, made.path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_all_that_lies_in_it_counts(home: Home, shared: Path) -> None:
    made = vault(home, shared)
    made.make(1 << 30)  # setting it anew keeps what is there
    assert made.budget_bytes == 1 << 30
    before = made.free_bytes()
    (made.slots / "1").write_bytes(bytes(100_000))
    store = made.store()
    assert store is not None
    store.put("log/1", bytes(100_000))
    assert before - made.free_bytes() >= 200_000


def test_without_a_vault_there_is_no_store(home: Home, shared: Path) -> None:
    made = VaultFolder.of(home, "file:///a", NODE, root=shared)
    assert made.store() is None
    assert (made.budget_bytes, made.used_bytes()) == (0, 0)


def test_only_one_process_keeps_it(home: Home, shared: Path) -> None:
    made = vault(home, shared)
    handle = made.hold()
    assert handle is not None
    assert made.is_held
    assert made.hold() is None
    os.close(handle)
    assert not made.is_held


def test_what_nobody_holds_is_swept_once_it_is_old(home: Home, shared: Path) -> None:
    stale, kept, leased = (vault(home, shared, run) for run in ("file:///a", "file:///b", "file:///c"))
    (stale.slots / "1").write_bytes(bytes(1000))
    handle = kept.hold()
    assert handle is not None
    (leased.slots / f"1{LEASE}").touch()
    lease = VaultFolder(leased.path)
    worker = _lock(lease.slots / f"1{LEASE}")
    now_s = time.time()
    assert sweep(home, now_s=now_s, grace_s=60.0, root=shared) == []
    assert sweep(home, now_s=now_s + 61.0, grace_s=60.0, root=shared) == [stale.path]
    assert not stale.path.exists()
    os.close(handle)
    os.close(worker)
    assert len(sweep(home, now_s=now_s, grace_s=0.0, root=shared)) == 2
    assert not home_folder(home, root=shared).exists()


def test_a_home_without_anything_in_shared_memory_is_swept_without_a_word(home: Home, shared: Path) -> None:
    assert sweep(home, now_s=0.0, grace_s=0.0, root=shared) == []


def test_a_machine_without_shared_memory_is_told(tmp_path: Path) -> None:
    assert shared_memory_bytes(tmp_path) > 0
    with pytest.raises(StorageError, match="vault_gib"):
        shared_memory_bytes(tmp_path / "none")


def _lock(path: Path) -> int:
    import fcntl

    handle = os.open(path, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle
