"""Starting, finding, keeping and ending a host process that has neither Ray nor store: the cheap cases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from stormsail.platform.errors import ClusterError, ConfigError
from stormsail.platform.home import Home
from stormsail.supervisor.host.client import connect_ray, down, ensure_host, live_runs, read_host, touch
from stormsail.supervisor.host.identity import ProcessIdentity
from stormsail.supervisor.host.info import HostInfo, write_info
from stormsail.supervisor.host.lease import hold
from stormsail.supervisor.host.paths import HostPaths

pytestmark = pytest.mark.slow  # starts host processes

Wait = Callable[[Callable[[], bool]], None]


def start(home: Home) -> HostInfo:
    return ensure_host(home, ray=False, store=False, notify=print)


def test_a_host_is_started_once_and_then_joined(home: Home) -> None:
    first = start(home)
    assert start(home).identity == first.identity
    assert first.identity.is_alive()
    assert os.getsid(first.identity.pid) == first.identity.pid


def test_simultaneous_starters_end_with_one_host(home: Home) -> None:
    with ThreadPoolExecutor(4) as pool:
        pids = {info.identity.pid for info in pool.map(lambda _: start(home), range(4))}
    assert len(pids) == 1
    assert HostPaths.of(home).log.read_text().count("host started") == 1


def test_what_is_on_disk_is_for_this_user_alone(home: Home) -> None:
    start(home)
    paths = HostPaths.of(home)
    assert paths.folder.stat().st_mode & 0o777 == 0o700
    assert paths.info.stat().st_mode & 0o777 == 0o600
    assert paths.control.stat().st_mode & 0o777 == 0o600


def test_the_info_file_says_what_the_answer_says(home: Home) -> None:
    assert start(home) == read_host(home)


def test_down_ends_the_host_and_leaves_no_file_that_claims_one(home: Home) -> None:
    info = start(home)
    assert down(home)
    assert not info.identity.is_alive()
    assert read_host(home) is None
    assert not HostPaths.of(home).control.exists()
    assert not HostPaths.of(home).info.exists()
    assert not HostPaths.of(home).short.exists()


def test_without_a_host_nothing_is_started_to_end_or_touch_it(home: Home) -> None:
    assert not down(home)
    assert not touch(home)
    assert live_runs(home) == []
    assert read_host(home) is None


def test_a_killed_host_is_replaced_though_its_files_remain(home: Home, wait_until: Wait) -> None:
    first = start(home)
    os.kill(first.identity.pid, signal.SIGKILL)
    wait_until(lambda: not first.identity.is_alive())
    assert HostPaths.of(home).info.exists()
    assert read_host(home) is None
    second = start(home)
    assert second.identity.pid != first.identity.pid
    assert read_host(home) == second


def test_a_pid_that_was_used_again_is_not_taken_for_the_host(home: Home) -> None:
    paths = HostPaths.of(home)
    paths.make_folders()
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    write_info(paths.info, HostInfo(replace(mine, started="1"), "", 0.0, ""))
    assert read_host(home) is None
    assert not down(home)
    assert start(home).identity.pid != os.getpid()


def test_a_home_that_another_machine_uses_is_refused(home: Home) -> None:
    start(home)
    paths = HostPaths.of(home)
    record = json.loads(paths.info.read_text())
    record["identity"]["machine"] = "elsewhere"
    paths.control.rename(paths.control.with_suffix(".away"))
    paths.info.write_text(json.dumps(record))
    try:
        with pytest.raises(ClusterError, match="host process on elsewhere"):
            start(home)
    finally:
        paths.control.with_suffix(".away").rename(paths.control)


def test_an_unused_host_ends_by_itself(home: Home, wait_until: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMSAIL_HOST_IDLE_S", "5")
    info = start(home)
    wait_until(lambda: not info.identity.is_alive())
    assert "unused for" in HostPaths.of(home).log.read_text()


def test_a_lease_keeps_the_host_and_a_dead_holder_does_not(
    home: Home, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORMSAIL_HOST_IDLE_S", "0.3")
    monkeypatch.setenv("STORMSAIL_HOME", str(home.path))
    code = (
        "import time\nfrom stormsail.platform.home import Home\nfrom stormsail.supervisor.host.lease import hold\n"
        "with hold(Home.here()):\n    print('held', flush=True)\n    time.sleep(120)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        info = start(home)
        time.sleep(1.2)
        assert info.identity.is_alive()
        holder.kill()
    wait_until(lambda: not info.identity.is_alive())


def test_an_unused_host_of_another_environment_is_replaced(home: Home, tmp_path: Path) -> None:
    first = start_from_another_environment(home, tmp_path)
    second = start(home)
    assert second.identity != first.identity
    assert not first.identity.is_alive()


def test_a_used_host_of_another_environment_is_refused(home: Home, tmp_path: Path) -> None:
    info = start_from_another_environment(home, tmp_path)
    with hold(home), pytest.raises(ClusterError, match="another environment and is in use"):
        start(home)
    assert info.identity.is_alive()


def start_from_another_environment(home: Home, tmp_path: Path) -> HostInfo:
    venv.create(tmp_path / "venv", with_pip=False)
    code = (
        "from stormsail.platform.home import Home\nfrom stormsail.supervisor.host.client import ensure_host\n"
        "ensure_host(Home.here(), ray=False, store=False, notify=print)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "STORMSAIL_HOME": str(home.path)}
    subprocess.run([tmp_path / "venv/bin/python", "-c", code], env=environment, timeout=60, check=True)
    info = read_host(home)
    assert info is not None
    assert info.runtime.startswith(str(tmp_path / "venv"))
    return info


def test_a_host_without_ray_says_so(home: Home) -> None:
    with pytest.raises(ClusterError, match="runs no Ray"):
        connect_ray(start(home))


def test_a_home_that_cannot_be_made_is_named(home: Home) -> None:
    home.path.parent.joinpath("home").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be made"):
        start(home)
    home.path.unlink()


def test_a_host_that_cannot_start_is_reported_with_its_reason(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMSAIL_HOST_IDLE_S", "soon")
    with pytest.raises(ClusterError, match="could not convert string to float"):
        start(home)
