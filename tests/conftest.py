"""What all tests share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from hypothesis import settings

from stormsail.platform.storage.embedded import EmbeddedServer
from stormsail.platform.storage.store import StoreAddress

# No limit on time per example: on a busy machine it would fail tests for nothing.
settings.register_profile("stormsail", deadline=None)
settings.load_profile("stormsail")


@pytest.fixture(scope="session")
def embedded_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreAddress]:
    """A real S3 server for the whole session; started by the first test that asks."""
    folder = tmp_path_factory.mktemp("s3")
    server = EmbeddedServer(folder / "store", folder / "keys.json")
    yield server.start(60.0)
    server.stop()


@pytest.fixture
def s3_address(embedded_address: StoreAddress) -> StoreAddress:
    """A place of this test's own on the real S3 server."""
    return embedded_address.child(f"test-{secrets.token_hex(6)}")
