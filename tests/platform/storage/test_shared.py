"""What is special about a store in shared memory: its budget. The common promises are in `test_store.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.errors import ObjectMissingError, StorageFullError
from stormsail.platform.vault.folder import VaultFolder


@pytest.fixture
def folder(tmp_path: Path) -> VaultFolder:
    made = VaultFolder(tmp_path / "all" / "home" / "run-node")
    (tmp_path / "all").mkdir()
    made.make(100_000)
    return made


def test_what_does_not_fit_is_refused_and_leaves_nothing(folder: VaultFolder) -> None:
    store = folder.store()
    assert store is not None
    store.put("log/1", bytes(40_000))
    with pytest.raises(StorageFullError, match="vault_gib"):
        store.put("log/2", bytes(80_000))
    with pytest.raises(ObjectMissingError):
        store.head("log/2")
    assert folder.used_bytes() <= 100_000


def test_deleting_makes_room(folder: VaultFolder) -> None:
    store = folder.store()
    assert store is not None
    store.put("log/1", bytes(40_000))
    store.delete("log/1")
    store.put("log/2", bytes(40_000))


def test_an_upload_in_parts_that_has_become_too_large_is_refused(folder: VaultFolder) -> None:
    (folder.slots / "other").write_bytes(bytes(90_000))
    store = folder.store()
    assert store is not None
    upload = store.multipart("log/1")
    upload.write(bytes(80_000))
    with pytest.raises(StorageFullError):
        upload.complete()
    assert list(store.list()) == []
