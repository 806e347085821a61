"""How many trials at a time: from what is free on the cluster, never so many that they starve each other; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stormsail.platform.errors import ClusterError

Resources = Mapping[str, float]
"""Amounts by Ray's names: `CPU`, `GPU`."""


def fits(free: Resources, per_trial: Resources) -> int:
    """Trials that fit into what is free."""
    return min(math.floor(free.get(name, 0.0) / amount + 1e-9) for name, amount in per_trial.items())


def fits_on(nodes: Sequence[Resources], per_trial: Resources) -> int:
    """Trials that fit on idle nodes. None is spread over two: what is left over on one helps no other."""
    return sum(fits(node, per_trial) for node in nodes)


def concurrency(
    *, nodes: Sequence[Resources], free: Resources, per_trial: Resources, wanted: int | None, trials: int
) -> int:
    """Trials to run at a time; at least one, which then waits until there is room.

    Args:
        nodes: What each node has.
        free: What nobody else holds on the whole cluster: what is idle, and what this sweep's own trials hold.
        per_trial: What one trial holds from its start to its end, its workers' included; above 0.
        wanted: The user's limit, or None.
        trials: Trials that are left.

    Raises:
        ClusterError: Not even one would fit on an idle cluster.
    """
    most = fits_on(nodes, per_trial)
    if most < 1:
        needs, *has = (
            ", ".join(f"{amount.get(name, 0.0):g} {name}" for name in per_trial) for amount in (per_trial, *nodes)
        )
        raise ClusterError(
            f"one trial needs {needs}, but no node of the cluster has that (there are: {'; '.join(dict.fromkeys(has))})",
            todo="lower trials.cpus or trials.gpus (for supervised trials cluster.cpus_per_worker), or use a larger cluster",
        )
    return max(1, min(fits(free, per_trial), most, trials, trials if wanted is None else wanted))


def worth_a_new_start(*, now: int, limit: int, left: int) -> bool:
    """Whether to begin the rest of a batch anew, which costs seconds, because there is room for half as many again.

    Args:
        now: Trials that there is room for at a time.
        limit: Trials that run at a time at most.
        left: Trials that have not begun.
    """
    return 2 * now >= 3 * limit and left >= 2 * now


def eta_s(*, done: int, total: int, spent_s: float) -> float | None:
    """Seconds that are left, if the rest goes like what was done in this session; None before the first."""
    return spent_s / done * (total - done) if done else None
