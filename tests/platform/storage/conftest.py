"""The same store tests run over every kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.shared import SharedStore
from stormsail.platform.storage.store import ObjectStore


@pytest.fixture(params=["memory", "local", "shared", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind; the last one is a real S3 server."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    if request.param == "shared":
        return SharedStore(tmp_path / "store", free_bytes=lambda: 1 << 30)
    return S3Store(request.getfixturevalue("s3_address"))
