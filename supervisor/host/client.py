"""What commands call: have the local host process running, connect to its Ray, end it.

Importing this imports neither Ray nor a storage library.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stormsail.platform.errors import ClusterError, TryLaterError
from stormsail.platform.home import Home
from stormsail.supervisor.host.environment import host_environment, ray_environment
from stormsail.supervisor.host.head import NAMESPACE, refresh_authentication
from stormsail.supervisor.host.identity import ProcessIdentity
from stormsail.supervisor.host.info import HostInfo, read_info, runtime_label
from stormsail.supervisor.host.paths import HostPaths
from stormsail.supervisor.host.protocol import NoHostError, ask
from stormsail.workers.quiet import quiet_environment, quiet_process

Notify = Callable[[str], None]

_LOCK_HELD = 3
_MOST_STARTS = 3
_START_S = 60.0
_PING_S = 60.0
_END_S = 90.0
_POLL_S = 0.1
_PATIENCE_S = 1.0


def ensure_host(
    home: Home,
    *,
    ray: bool,
    store: bool,
    num_cpus: float | None = None,
    notify: Notify,
    limit_s: float = 240.0,
) -> HostInfo:
    """Start the host process of this home, or join the one that runs, with what the caller needs.

    Args:
        home: Whose host.
        ray: The local Ray is needed.
        store: The local store is needed.
        num_cpus: CPUs that Ray must hand out; it never has fewer than the machine.
        notify: Gets a line when the wait exceeds about a second: what for, until when.
        limit_s: Limit of the whole call.

    Returns:
        What runs, with the addresses that were asked for.

    Raises:
        ClusterError: The host, Ray or the store cannot be started, or a host that cannot be shared is in use.
        TryLaterError: It did not answer within the limit.
    """
    paths = HostPaths.of(home)
    paths.make_folders()
    wait = _Wait(limit_s, notify, paths)
    request = {"op": "ensure", "ray": ray, "store": store, "num_cpus": num_cpus}
    starts = 0
    while True:
        try:
            found = _info(_ask(paths, {"op": "ping"}, wait, _PING_S))
            if found.runtime == runtime_label():
                return _info(_ask(paths, request, wait, wait.left_s))
            _replace(paths, found, wait)
        except NoHostError:
            # Only once the last one has ended is its reason in the log.
            if starts >= _MOST_STARTS and not _is_locked(paths):
                raise ClusterError(
                    f"The local host process was started {starts} times and ended each time: {_last_line(paths.log)}",
                    where=str(paths.log),
                    todo="See that log.",
                ) from None
            starts += _start(home, paths)
            wait.tick("waiting for the local host process to start")


def connect_ray(info: HostInfo) -> None:
    """Make this process a driver of the host's Ray, in namespace `stormsail`, without output of Ray's own.

    Sets Ray's variables in this process. Call it before anything imports Ray where that is possible.

    Args:
        info: From `ensure_host(..., ray=True)`.

    Raises:
        ClusterError: The host has no Ray, or Ray does not let this process in.
    """
    if info.ray_address is None or info.ray_token_file is None or not Path(info.ray_token_file).is_file():
        raise ClusterError("The local host process runs no Ray.", where=info.log_file, todo="Run the command again.")
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_NAMESPACE"):
        os.environ.pop(name, None)
    os.environ.update(ray_environment(Path(info.ray_token_file)))
    quiet_process()
    early = "ray" in sys.modules
    import ray

    if early:
        _adopt_environment()
    try:
        ray.init(
            address=info.ray_address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise ClusterError(
            f"The local Ray at {info.ray_address} does not let this process in: {error}",
            where=info.log_file,
            todo="`stormsail down` ends it; the next command starts it again.",
        ) from error


def read_host(home: Home) -> HostInfo | None:
    """The host process that runs now, without talking to it; starts nothing."""
    info = read_info(HostPaths.of(home).info)
    return None if info is None or info.identity.is_elsewhere() else info


def own_host(home: Home) -> HostInfo | None:
    """The host process whose Ray this process has joined; None where it has joined another cluster."""
    import ray

    info = read_host(home)
    return info if info is not None and info.ray_address == ray.get_runtime_context().gcs_address else None


def touch(home: Home) -> bool:
    """Tell the host that it is still used. Returns whether there is one."""
    return _ask_running(home, {"op": "touch"}) is not None


def live_runs(home: Home) -> list[str]:
    """Names of the runs that live on the local Ray now; none where no host runs."""
    result = _ask_running(home, {"op": "runs"})
    return [] if result is None else [str(name) for name in result["runs"]]


def down(home: Home) -> bool:
    """End the host process, its Ray with all runs on it, and its store; the data stays.

    Returns:
        Whether there was one.

    Raises:
        TryLaterError: It could not be ended within the limit.
    """
    paths = HostPaths.of(home)
    if not _is_locked(paths):
        return False
    info = read_host(home)
    try:
        ask(paths.control, {"op": "down"}, limit_s=_PING_S, log=paths.log, on_wait=lambda _: None)
    except (NoHostError, TryLaterError):
        _signal(info, signal.SIGTERM)
    if not _unlocks_within(paths, _END_S):
        _signal(info, signal.SIGKILL)
        if not _unlocks_within(paths, _PING_S):
            raise TryLaterError(
                f"The local host process did not end within {_END_S + _PING_S:.0f} s.",
                where=str(paths.log),
                todo="See that log, and end the process that it names.",
            )
    paths.info.unlink(missing_ok=True)
    return True


@dataclass(slots=True)
class _Wait:
    """Knows how much time is left, and tells the user once what for when it takes longer than a moment."""

    limit_s: float
    notify: Notify
    paths: HostPaths
    started_s: float = 0.0
    said: str = ""

    def __post_init__(self) -> None:
        self.started_s = time.monotonic()

    @property
    def left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self.started_s)

    def say(self, what: str) -> None:
        if what != self.said and time.monotonic() - self.started_s > _PATIENCE_S:
            self.said = what
            self.notify(f"{what} (log: {self.paths.log})")

    def tick(self, what: str) -> None:
        if self.left_s <= 0:
            raise TryLaterError(
                f"Gave up {what} after {self.limit_s:.0f} s.", where=str(self.paths.log), todo="See that log."
            )
        self.say(f"{what}, at most {self.limit_s:.0f} s")
        time.sleep(_POLL_S)


def _ask(paths: HostPaths, request: dict[str, Any], wait: _Wait, limit_s: float) -> dict[str, Any]:
    return ask(paths.control, request, limit_s=max(1.0, limit_s), log=paths.log, on_wait=wait.say)


def _ask_running(home: Home, request: dict[str, Any]) -> dict[str, Any] | None:
    paths = HostPaths.of(home)
    try:
        return ask(paths.control, request, limit_s=_PING_S, log=paths.log, on_wait=lambda _: None)
    except NoHostError:
        return None


def _info(reply: dict[str, Any]) -> HostInfo:
    try:
        return HostInfo.from_json(reply)
    except (KeyError, TypeError) as error:
        raise ClusterError(
            "The local host process that runs is of another version of Stormsail.",
            todo="End it with `stormsail down` of that version, or by its pid; then start again.",
        ) from error


def _replace(paths: HostPaths, found: HostInfo, wait: _Wait) -> None:
    """End a host that runs with another Python or Ray, if nobody uses it."""
    reply = _ask(paths, {"op": "down", "only_if_unused": True}, wait, _PING_S)
    if not reply["ending"]:
        raise ClusterError(
            f"The local host process runs with another environment and is in use.\nIt has: {found.runtime}\n"
            f"This is: {runtime_label()}",
            where=f"process {found.identity.pid}",
            todo="Use that environment, wait for its runs to end, or set STORMSAIL_HOME to another folder.",
        )
    while _is_locked(paths):
        wait.tick("waiting for a host process of another environment to end")


def _start(home: Home, paths: HostPaths) -> int:
    """Start a host process, unless one is there. Returns how many were started: 1 or 0."""
    other = read_info(paths.info)
    if other is not None and other.identity.is_elsewhere() and _is_locked(paths):
        raise ClusterError(
            f"This home is in use by a host process on {other.identity.machine}.",
            where=str(home.path),
            todo="Set STORMSAIL_HOME to a folder on a disk of this machine.",
        )
    # Ray's workers inherit it, and look for extensions in the same home.
    environment = host_environment(os.environ) | quiet_environment() | {"STORMSAIL_HOME": str(home.path)}
    # -P: what lies in the folder where the command was typed must not shadow a library of the host.
    command = [sys.executable, "-P", "-m", "stormsail.supervisor.host.process", str(home.path)]
    done = subprocess.run(  # noqa: S603 - our own module
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_START_S,
        check=False,
    )
    if done.returncode == _LOCK_HELD:
        return 0
    if done.returncode != 0:
        raise ClusterError(
            f"The local host process did not start: {(done.stderr.strip().splitlines() or ['no output'])[-1]}",
            where=" ".join(command),
            todo="Run that command to see all of its output.",
        )
    return 1


def _adopt_environment() -> None:
    """Ray was imported before its variables were set: repeat what its import would have done."""
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False
    refresh_authentication()


def _is_locked(paths: HostPaths) -> bool:
    """Whether a host process lives: it holds the lock until it is gone, however it went."""
    try:
        with paths.lock.open("r", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _unlocks_within(paths: HostPaths, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while _is_locked(paths):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _signal(info: HostInfo | None, number: signal.Signals) -> None:
    if info is not None and ProcessIdentity.of(info.identity.pid) == info.identity:
        os.kill(info.identity.pid, number)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except FileNotFoundError:
        return "no log was written"
    return lines[-1] if lines else "its log is empty"
