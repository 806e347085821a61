"""The environment that the host process starts with: what happened to be set where the first command ran stays out.

The host outlives the command that started it and serves others, so that its Ray must not depend on who
came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# What a launcher, a Ray worker or our own command leaves in the environment of its children.
_LEFTOVER_PREFIXES = ("RAY_", "__RAY_", "STORMSAIL__", "TORCHELASTIC_")
_LEFTOVERS = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
)


def host_environment(present: Mapping[str, str]) -> dict[str, str]:
    """`present` without leftovers of Ray, of launchers and of one command's own settings."""
    dropped = set(_LEFTOVERS)
    if "RAY_JOB_ID" in present:
        # Inside a Ray worker it was Ray that chose these devices, for that worker.
        dropped.add("CUDA_VISIBLE_DEVICES")
    return {
        name: value
        for name, value in present.items()
        if name not in dropped and not name.startswith(_LEFTOVER_PREFIXES)
    }


def ray_environment(token_file: Path) -> dict[str, str]:
    """What head, workers and drivers of the local Ray need alike, before Ray is imported."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        # Ray's switch for "no cluster of several machines": it then listens on 127.0.0.1 alone, on every system.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # There is no dashboard, so nobody looks at what its agent measures every five seconds.
        "REPORTER_UPDATE_INTERVAL_MS": "60000",
    }
