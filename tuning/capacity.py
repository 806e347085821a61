"""How many trials at a time: from what the cluster has, never so many that they starve each other; pure."""

from __future__ import annotations

import math

from stormsail.platform.errors import ClusterError


def concurrency(*, cpus: float, per_trial: float, wanted: int | None, trials: int) -> int:
    """Trials to run at a time.

    Args:
        cpus: CPUs of the whole cluster.
        per_trial: CPUs that one trial holds from its start to its end, its workers' included.
        wanted: The user's limit, or None.
        trials: Trials that are left.

    Raises:
        ClusterError: Not even one fits.
    """
    fit = math.floor(cpus / per_trial + 1e-9)
    if fit < 1:
        raise ClusterError(
            f"one trial needs {per_trial:g} CPUs, but the cluster has {cpus:g}",
            todo="lower trials.cpus (or cluster.cpus_per_worker for supervised trials), or use a larger cluster",
        )
    return max(1, min(fit, trials, wanted or fit))


def eta_s(*, done: int, total: int, spent_s: float) -> float | None:
    """Seconds that are left, if the rest goes like what was done in this session; None before the first."""
    return spent_s / done * (total - done) if done else None
