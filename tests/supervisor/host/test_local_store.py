"""The store comes back with the same address, keeps its data, and has an honest replacement."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from stormsail.platform.home import Home
from stormsail.platform.storage.embedded import embedded_available
from stormsail.platform.storage.s3 import S3Store
from stormsail.supervisor.host.local_store import LocalStore
from stormsail.supervisor.host.paths import HostPaths

pytestmark = pytest.mark.slow  # starts real servers

needs_server = pytest.mark.skipif(not embedded_available(), reason="there is no embedded server for this system")


@pytest.fixture
def store(home: Home) -> Iterator[LocalStore]:
    paths = HostPaths.of(home)
    paths.make_folders()
    store = LocalStore(home, paths, embedded=True)
    yield store
    store.stop()


@needs_server
def test_a_store_that_died_comes_back_with_its_address_and_its_data(
    store: LocalStore, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    store.ensure()
    address = store.address
    assert address is not None
    assert store.kind == "embedded"
    S3Store(address).put("kept", b"bytes")
    server = store._server
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.poll() is not None)
    store.start_again_if_dead()
    assert store.address == address
    assert S3Store(address).get("kept") == b"bytes"
    store.stop()
    assert store.address is None
    assert store.kind == ""


def test_where_there_is_no_server_a_folder_takes_its_place(home: Home) -> None:
    store = LocalStore(home, HostPaths.of(home), embedded=False)
    assert store.kind == ""
    store.ensure()
    store.start_again_if_dead()
    assert store.kind == "file"
    assert store.address is not None
    assert store.address.url == (home.store / "files").as_uri()
    assert (home.store / "files").is_dir()
    store.stop()
