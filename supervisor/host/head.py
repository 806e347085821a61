"""The local Ray cluster. The host process is the driver that started it, and it lives as long as that driver.

Ray is imported when first asked for. All methods belong to the host's main thread.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from stormsail.platform.errors import ClusterError
from stormsail.supervisor.host.environment import ray_environment
from stormsail.supervisor.host.paths import HostPaths

NAMESPACE = "stormsail"
RUN_PREFIX = "run:"

_OBJECT_STORE_BYTES = 200_000_000
# Without these the cluster is lost; others (such as the dashboard agent) may die unnoticed.
_ESSENTIAL = ("gcs_server", "raylet")
_log = logging.getLogger("stormsail.host")


class RayHead:
    """Starts, watches and stops Ray on this machine, on the loopback interface, with token authentication."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self.address: str | None = None
        self.session: str | None = None
        self.cpus = 0

    def ensure(self, asked_cpus: float | None) -> None:
        """Have Ray running with at least `asked_cpus` CPUs, and never with fewer than the machine has.

        CPUs are what Ray counts, not cores: two workers fit on one core, and share it.

        Raises:
            ClusterError: It runs with fewer CPUs, and carries runs, so that it cannot be started again.
        """
        cpus = max(os.cpu_count() or 1, math.ceil(asked_cpus or 0.0))
        if self.address is not None and self.cpus < cpus:
            self._make_way(cpus)
        if self.address is None:
            self._start(cpus)

    def live_runs(self) -> list[str]:
        """Names of the runs whose supervisor actor exists."""
        if self.address is None:
            return []
        import ray

        names: list[str] = ray.util.list_named_actors()
        return sorted(name.removeprefix(RUN_PREFIX) for name in names if name.startswith(RUN_PREFIX))

    def forget_if_dead(self) -> None:
        """Give Ray up if one of its essential processes has died; the next `ensure` starts it again."""
        if self.address is None:
            return
        dead = [name for name, _ in _node().dead_processes() if name in _ESSENTIAL]
        if dead:
            _log.error("ray lost %s; its logs: %s", " and ".join(dead), self.session)
            self.stop()

    def stop(self) -> None:
        """End Ray and everything that runs on it; its logs are kept until the next stop."""
        if self.address is None:
            return
        import ray

        ray.shutdown()
        _log.info("ray stopped")
        self.address, self.cpus, session = None, 0, self.session
        self.session = None
        if session is not None and Path(session, "logs").is_dir():
            shutil.rmtree(self._paths.ray_logs, ignore_errors=True)
            shutil.move(Path(session, "logs"), self._paths.ray_logs)
        shutil.rmtree(self._paths.ray_temp, ignore_errors=True)

    def _make_way(self, cpus: int) -> None:
        runs = self.live_runs()
        if runs:
            raise ClusterError(
                f"The local Ray has {self.cpus} CPUs, {cpus} are asked for, and it is in use by: {', '.join(runs)}.",
                todo="Wait until these are done, or stop them; or ask for fewer workers or CPUs per worker.",
            )
        _log.info("ray starts again with %d CPUs instead of %d", cpus, self.cpus)
        self.stop()

    def _start(self, cpus: int) -> None:
        # Session folders of a host process that was killed.
        shutil.rmtree(self._paths.ray_temp, ignore_errors=True)
        self._paths.ray_temp.mkdir(mode=0o700)
        _write_token(self._paths.ray_token)
        os.environ.update(ray_environment(self._paths.ray_token))
        import ray

        refresh_authentication()
        context: Any = ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.WARNING,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=str(self._paths.ray_temp),
        )
        _node().kill_log_monitor()  # it reads every worker's log, for drivers that all said no to it
        self.address, self.session, self.cpus = (
            context.address_info["address"],
            context.address_info["session_dir"],
            cpus,
        )
        _log.info("ray started at %s with %d CPUs; logs in %s/logs", self.address, cpus, self.session)


def _node() -> Any:
    from ray._private import worker

    return worker._global_node  # noqa: SLF001 - Ray has no public way to ask for its own processes


def refresh_authentication() -> None:
    """Let a Ray that was imported earlier in this process see the token file that the environment names now."""
    from ray import _raylet

    compiled: Any = _raylet  # a C++ module without type information
    compiled.Config.initialize("")
    compiled.AuthenticationTokenLoader.instance().reset_cache()


def _write_token(path: Path) -> None:
    """A new secret for each cluster, readable by this user alone."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
