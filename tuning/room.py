"""Room on the cluster for the trials of a batch: what each holds, how many fit, and whether more would by now."""

from __future__ import annotations

import time

from stormsail.platform.config.model import RunConfig
from stormsail.tuning.capacity import Resources, concurrency, worth_a_new_start
from stormsail.tuning.settings import SweepConfig

_SETTLES_S, _LOOK_S = 5.0, 0.1
_LOOKS = 2


def held_per_trial(sweep: SweepConfig, target: RunConfig, *, run_takes_gpu: bool) -> Resources:
    """What a trial holds: its own process's CPUs and GPUs, or its run's one worker's.

    Args:
        sweep: The sweep.
        target: The run that it is for.
        run_takes_gpu: Whether a run on this cluster computes on GPUs.
    """
    if sweep.trials.kind == "supervised":
        return {"CPU": target.cluster.cpus_per_worker, **({"GPU": 1.0} if run_takes_gpu else {})}
    return {"CPU": sweep.trials.cpus, **({"GPU": sweep.trials.gpus} if sweep.trials.gpus else {})}


class Room:
    """How many trials of a batch there is room for, as the cluster is now; other sweeps and runs come and go.

    Args:
        sweep: The sweep.
        per_trial: What a trial holds.
        trials: Trials of the batch.
    """

    def __init__(self, sweep: SweepConfig, per_trial: Resources, trials: int) -> None:
        self._wanted = sweep.trials.max_concurrent
        self._per_trial = per_trial
        self._trials = trials
        self._limit = 1
        self._grown = 0

    def at_first(self) -> int:
        """Trials to run at a time. What an earlier batch held is free only seconds after its end, so it is waited for.

        Raises:
            ClusterError: Not even one would fit.
        """
        import ray

        until = time.monotonic() + _SETTLES_S
        while True:
            self._limit = self._fitting(ray.available_resources())
            if self._limit >= self._fitting(ray.cluster_resources()) or time.monotonic() >= until:
                return self._limit
            time.sleep(_LOOK_S)

    def grown(self, *, holding: int, left: int) -> bool:
        """Whether there is so much more room, and not for a moment only, that the rest had better begin anew.

        Args:
            holding: Trials that hold what they need.
            left: Trials that have not begun.
        """
        import ray

        free = ray.available_resources()
        now = self._fitting({name: free.get(name, 0.0) + holding * amount for name, amount in self._per_trial.items()})
        more = worth_a_new_start(now=now, limit=self._limit, left=left)
        self._grown = self._grown + 1 if more else 0
        return self._grown >= _LOOKS

    def _fitting(self, free: Resources) -> int:
        import ray

        return concurrency(
            nodes=[node["Resources"] for node in ray.nodes() if node["Alive"]],
            free=free,
            per_trial=self._per_trial,
            wanted=self._wanted,
            trials=self._trials,
        )
