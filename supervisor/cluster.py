"""Joining the run's Ray: the cluster that is configured, the one around us, or this machine's own."""

from __future__ import annotations

import logging
import os

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ClusterError, ConfigError
from stormsail.platform.home import Home
from stormsail.supervisor import places
from stormsail.supervisor.host.client import connect_ray, ensure_host
from stormsail.workers.quiet import mute_error_feed


def connect(config: RunConfig, home: Home, notify: places.Notify, *, remembered: str | None = None) -> str | None:
    """Connect this process to the run's Ray: the configured one, `RAY_ADDRESS`, or the local host's own.

    Args:
        config: The run.
        home: This machine's folder.
        notify: Gets a line when a wait gets long.
        remembered: The address that the run was started at, should nothing else say.

    Returns:
        The address of a cluster that is not our own, or None.

    Raises:
        ClusterError: The cluster cannot be joined.
        ConfigError: The run wants what a cluster of several nodes does not have.
    """
    import ray

    mute_error_feed()
    address = config.cluster.address or os.environ.get("RAY_ADDRESS") or remembered
    if ray.is_initialized():
        return address
    if address is None:
        wanted = config.cluster.workers * config.cluster.cpus_per_worker
        connect_ray(ensure_host(home, ray=True, store=False, num_cpus=wanted, notify=notify))
        return None
    _join_cluster(address)
    _refuse_embedded_on_many(config)
    return address


def _join_cluster(address: str) -> None:
    import ray

    try:
        ray.init(
            address=address,
            namespace="stormsail",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
    except (ConnectionError, ray.exceptions.AuthenticationError, ray.exceptions.RaySystemError) as error:
        raise ClusterError(
            f"cannot join the Ray cluster: {error}",
            where=address,
            todo="check the address, and RAY_AUTH_MODE and RAY_AUTH_TOKEN if the cluster uses token authentication",
        ) from error


def _refuse_embedded_on_many(config: RunConfig) -> None:
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    if len(alive) > 1 and config.storage.url == places.EMBEDDED:
        raise ConfigError(
            f"storage: embedded lives on one machine, but the cluster has {len(alive)} nodes",
            where="storage",
            todo="give a store that all nodes reach, such as s3://bucket/prefix",
        )
    if len(alive) > 1 and config.cluster.shared_path is None:
        raise ConfigError(
            f"Ray needs a folder that all {len(alive)} nodes share for its own files",
            where="cluster.shared_path",
            todo="set cluster.shared_path to a folder on a shared file system",
        )
