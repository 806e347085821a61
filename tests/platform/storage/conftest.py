"""The same store tests run over every kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_s3 import FakeS3
from tests.support.fault_proxy import FaultProxy

from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.shared import SharedStore
from stormsail.platform.storage.store import ObjectStore, StoreAddress


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


@pytest.fixture
def proxy(s3_address: StoreAddress) -> Iterator[FaultProxy]:
    """A proxy before the real S3 server."""
    assert s3_address.endpoint
    made = FaultProxy(s3_address.endpoint)
    yield made
    made.close()


@pytest.fixture
def fake_s3() -> Iterator[FakeS3]:
    """A server with faults at the test's choice."""
    made = FakeS3()
    yield made
    made.close()


@pytest.fixture
def fake_address(fake_s3: FakeS3, tmp_path: Path) -> StoreAddress:
    """Its address, with keys that it does not check."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"access_key": "old", "secret_key": "secret"}')
    return StoreAddress(
        "s3://bucket/run", endpoint=fake_s3.endpoint, region="us-east-1", credentials_file=str(keys), timeout_s=5.0
    )
