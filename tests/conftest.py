"""What all tests share."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from stormsail.platform.home import Home
from stormsail.platform.storage.embedded import EmbeddedServer
from stormsail.platform.storage.store import StoreAddress
from stormsail.workers.extension_build import build_extensions
from stormsail.workers.extensions import extension_folder

# No limit on time per example: on a busy machine it would fail tests for nothing.
settings.register_profile("stormsail", deadline=None, max_examples=50)
# `make test-fast` draws fewer examples; `make test` draws them all.
settings.register_profile("fast", deadline=None, max_examples=20)
settings.load_profile("stormsail")


# Whoever asks for one of these starts a server, a compiler or an engine.
SLOW_FIXTURES = {"embedded_address", "built_extensions"}


# These compare with the one undisturbed run of the session; everything else in tests/cluster needs the machine alone.
WITH_UNDISTURBED_RUN = {"test_identity.py", "test_job.py", "test_names.py", "test_survives.py"}


LONG = {
    "test_damage.py",
    "test_extension_build.py",
    "test_lean_imports.py",
    "test_process.py",
    "test_replay_ranks.py",
    "test_reshape.py",
    "test_several_ranks.py",
}


class SharingScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out whole files, and those that share a costly fixture together: in two processes, with a cluster each."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        if file.parent.name != "cluster" or file.name == "test_vaults.py":  # which starts nodes of its own
            return str(file)
        return "the undisturbed run" if file.name in WITH_UNDISTURBED_RUN else "the machine"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharingScheduling | None:
    """Our own way of handing out files."""
    return SharingScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `slow` what starts a server or an engine, so that nobody has to remember it; long files come early."""
    for item in items:
        variant = getattr(item, "callspec", None)
        on_s3 = variant is not None and variant.params.get("store") == "s3"
        if on_s3 or SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    # Otherwise one process is busy with the last of them when the others have ended.
    items.sort(key=lambda item: 0 if item.path.parent.name == "cluster" else 1 if item.path.name in LONG else 2)


@pytest.fixture(scope="session")
def embedded_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreAddress]:
    """A real S3 server for the whole session; started by the first test that asks."""
    folder = tmp_path_factory.mktemp("s3")
    server = EmbeddedServer(folder / "store", folder / "keys.json")
    yield server.start(60.0)
    # Tests leave requests that the server would wait for, and nobody needs what it holds.
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


@pytest.fixture(scope="session")
def built_extensions() -> Path:
    """DeepSpeed's C++ extensions, compiled once for all sessions on this machine (`make setup` has done it).

    A test with a home of its own links `extensions` there to this folder's parent.
    """
    shared = os.environ.get("STORMSAIL_TEST_EXTENSIONS") or Home.here().path
    folder = extension_folder(Home(Path(shared)))
    build_extensions(folder, deadline_s=900.0, notify=print)
    return folder


@pytest.fixture
def s3_address(embedded_address: StoreAddress) -> StoreAddress:
    """A place of this test's own on the real S3 server."""
    return embedded_address.child(f"test-{secrets.token_hex(6)}")
