"""The host process with a real Ray and a real store: what lives, what dies with what, and what comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stormsail.platform.errors import ClusterError
from stormsail.platform.home import Home
from stormsail.platform.vault.folder import VaultFolder
from stormsail.supervisor.host.client import down, ensure_host, live_runs, touch
from stormsail.supervisor.host.info import HostInfo
from stormsail.supervisor.host.lease import hold
from stormsail.supervisor.host.paths import HostPaths

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

Wait = Callable[[Callable[[], bool]], None]
Processes = Callable[[Home, int], list[str]]

CONNECT = """
import os, signal, sys
from pathlib import Path
from stormsail.platform.home import Home
from stormsail.supervisor.host.client import connect_ray, read_host
connect_ray(read_host(Home.here()))
import ray

@ray.remote(num_cpus=0)
class Supervisor:
    def pid(self): return os.getpid()
    def environment(self): return dict(os.environ)
"""
START_RUN = """
actor = Supervisor.options(name="run:" + sys.argv[1], lifetime="detached").remote()
print(ray.get(actor.pid.remote(), timeout=240), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
ASK_RUN = """
print(ray.get(ray.get_actor("run:" + sys.argv[1]).pid.remote(), timeout=240))
"""
END_RUN = """
ray.kill(ray.get_actor("run:" + sys.argv[1]))
"""
LISTENING = """
actor = Supervisor.remote()
print(ray.get(actor.environment.remote(), timeout=240)["RAY_AUTH_MODE"], len(ray.nodes()), ray.nodes()[0]["NodeManagerAddress"])
"""


def driver(
    home: Home, code: str, *arguments: str, expect: int = 0, before: str = ""
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", before + CONNECT + code, *arguments],
        env=os.environ | {"STORMSAIL_HOME": str(home.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    return done


def start_ray(home: Home, num_cpus: float | None = None, *, store: bool = False) -> HostInfo:
    return ensure_host(home, ray=True, store=store, num_cpus=num_cpus, notify=print)


def test_a_run_survives_its_driver_and_keeps_the_host_until_it_ends(
    home: Home, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORMSAIL_HOST_IDLE_S", "4")
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:1")
    with hold(home):
        info = start_ray(home, num_cpus=2)
        started = driver(home, START_RUN, "one", expect=-signal.SIGKILL)
    assert started.stderr == ""
    assert live_runs(home) == ["one"]
    time.sleep(6.0)  # longer than the limit
    asked = driver(home, ASK_RUN, "one")
    assert asked.stdout == started.stdout
    assert asked.stderr == ""
    driver(home, END_RUN, "one")
    wait_until(lambda: not info.identity.is_alive())
    assert "unused for" in HostPaths.of(home).log.read_text()


def test_ray_listens_on_loopback_alone_and_wants_the_token_and_sigterm_ends_it_like_down(
    home: Home, processes_of: Processes, wait_until: Wait
) -> None:
    info = start_ray(home)
    assert info.ray_address is not None
    assert info.ray_token_file is not None
    assert Path(info.ray_token_file).stat().st_mode & 0o777 == 0o600
    assert driver(home, LISTENING).stdout.split() == ["token", "1", "127.0.0.1"]
    # A process that imported Ray before it knew the host must get in as well.
    assert driver(home, LISTENING, before="import ray\n").stdout.split() == ["token", "1", "127.0.0.1"]
    port = f"{int(info.ray_address.rpartition(':')[2]):04X}"
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    bound = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port}")]
    assert bound in (["0100007F:" + port], ["0000000000000000FFFF00000100007F:" + port])
    os.kill(info.identity.pid, signal.SIGTERM)
    wait_until(lambda: not processes_of(home, info.identity.pid))
    assert "signal SIGTERM" in HostPaths.of(home).log.read_text()
    assert not HostPaths.of(home).info.exists()


def test_nothing_stays_behind_when_the_host_is_killed_or_asked_to_end(
    home: Home, wait_until: Wait, processes_of: Processes
) -> None:
    info = start_ray(home, store=True)
    assert info.store_kind == "embedded"
    driver(home, START_RUN, "one", expect=-signal.SIGKILL)
    pid = info.identity.pid
    names = " ".join(processes_of(home, pid))
    assert all(name in names for name in ("gcs_server", "raylet", "weed", "Supervisor"))
    left = left_in_shared_memory(home)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes_of(home, pid))
    assert left.path.exists()

    again = start_ray(home, store=True)
    assert again.identity.pid != pid
    assert live_runs(home) == []
    assert not left.path.exists()
    assert touch(home)
    driver(home, START_RUN, "two", expect=-signal.SIGKILL)
    left = left_in_shared_memory(home)
    assert down(home)
    wait_until(lambda: not processes_of(home, again.identity.pid))
    paths = HostPaths.of(home)
    assert list(paths.ray_logs.glob("gcs_server*"))
    assert not paths.short.exists()
    assert not left.path.exists()


def test_a_ray_is_started_again_where_it_lost_a_process_or_more_cpus_are_wanted_but_not_under_a_run(
    home: Home, wait_until: Wait
) -> None:
    info = start_ray(home)
    os.kill(child_of(info.identity.pid, "gcs_server"), signal.SIGKILL)
    wait_until(lambda: "ray lost gcs_server" in HostPaths.of(home).log.read_text())
    again = start_ray(home)
    assert again.identity == info.identity
    assert again.ray_session != info.ray_session
    assert driver(home, LISTENING).stdout.startswith("token 1")
    more = start_ray(home, num_cpus=again.ray_cpus + 0.5)
    assert more.ray_cpus == again.ray_cpus + 1
    driver(home, START_RUN, "one", expect=-signal.SIGKILL)
    with pytest.raises(ClusterError, match="in use by: one"):
        start_ray(home, num_cpus=more.ray_cpus + 1)
    assert live_runs(home) == ["one"]


def left_in_shared_memory(home: Home) -> VaultFolder:
    """A vault whose process was killed."""
    folder = VaultFolder.of(home, "file:///run", "0123456789abcdef")
    folder.make(1 << 20)
    return folder


def child_of(parent: int, name: str) -> int:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
            line = (folder / "cmdline").read_bytes().split(b"\0")[0]
            if line.endswith(name.encode()):
                return int(folder.name)
    raise AssertionError(name)
