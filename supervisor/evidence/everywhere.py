"""Looking at hanging processes on all nodes of the cluster, with Ray; on this node without it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from stormsail.supervisor.evidence.found import Found, Target
from stormsail.supervisor.evidence.looking import look_here

_START_S = 15.0  # a node that is busy needs long to start a process for a task


def look_everywhere(targets: Sequence[Target], limit_s: float) -> list[Found]:
    """Look at worker processes, each on its own node; blocks a little longer than `limit_s` at most.

    Returns:
        What was found, one for each target; where a node did not answer, that.
    """
    import ray

    here = (ray.util.get_node_ip_address(), socket.gethostname())
    ordered = sorted(targets, key=_machine)
    near: list[Target] = []
    tasks: dict[Any, list[Target]] = {}
    for machine, group in groupby(ordered, key=_machine):
        there = list(group)
        if machine == here:
            near += there
        else:
            tasks[_on_node(machine[0], there, limit_s)] = there
    found = look_here(near, limit_s) if near else []
    done, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=limit_s + _START_S) if tasks else ([], [])
    for task in done:
        found += _answer(ray, task, tasks[task])
    found += [_nothing(target, "its node did not answer in time") for task in late for target in tasks[task]]
    return sorted(found, key=lambda item: item.rank)


def _machine(target: Target) -> tuple[str, str]:
    return target.node_ip, target.hostname


def _on_node(address: str, targets: list[Target], limit_s: float) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ids = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == address]
    if not ids:
        return ray.put([_nothing(target, "its node is not in the cluster any more") for target in targets])
    pinned = NodeAffinitySchedulingStrategy(ids[0], soft=False)
    remote = ray.remote(num_cpus=0, max_retries=0)(look_here)
    return remote.options(scheduling_strategy=pinned).remote(targets, limit_s)


def _answer(ray: Any, task: Any, targets: list[Target]) -> list[Found]:
    try:
        found: list[Found] = ray.get(task)
    except ray.exceptions.RayError as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return [_nothing(target, f"its node could not look: {why}") for target in targets]
    return found


def _nothing(target: Target, why: str) -> Found:
    return Found(target.rank, "", "", "", f"none: {why}", "")
