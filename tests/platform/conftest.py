"""S3 servers with faults, and a file for a journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_s3 import FakeS3
from tests.support.fault_proxy import FaultProxy

from stormsail.platform.storage.store import StoreAddress


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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the journal keeps its lines on this machine."""
    return tmp_path / "journal.jsonl"
