"""Questions to the cluster's nodes before workers start: package, extensions, and free resources for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ClusterError
from stormsail.supervisor.room import give_back

_POLL_S = 0.25
_GRACE_TRIES = 12  # resources of processes that have just ended come back within seconds
_QUIET_S = 5.0  # a node that answers within this has nothing to build
_NODE_CHECK_TIMEOUT_S = 240.0


def wants_gpu(config: RunConfig) -> bool:
    """Whether workers get a GPU each: as configured, or where the cluster has any."""
    import ray

    if config.cluster.accelerator == "auto":
        return bool(ray.cluster_resources().get("GPU", 0))
    return config.cluster.accelerator == "gpu"


def wait_for_resources(
    config: RunConfig, *, use_gpu: bool, tell: Callable[..., object], cancelled: Callable[[], bool]
) -> None:
    """Wait until the cluster has room for all workers.

    Args:
        config: The run.
        use_gpu: Whether each worker also needs a GPU.
        tell: Records an event: what is waited for, and until when.
        cancelled: Ends the wait early when it says so.

    Raises:
        ClusterError: There was no room within `cluster.wait_s`.
    """
    import ray

    wanted = {"CPU": config.cluster.workers * config.cluster.cpus_per_worker}
    if use_gpu:
        wanted["GPU"] = float(config.cluster.workers)
    begun, until_s = time.monotonic(), time.time() + config.cluster.wait_s
    told, tries = False, 0
    while not cancelled():
        free = ray.available_resources()
        short = {
            key: f"{need:g} wanted, {free.get(key, 0):g} free"
            for key, need in wanted.items()
            if free.get(key, 0) < need
        }
        if not short:
            if told:
                tell("resources.ready")
            return
        give_back()  # what a controller left that died
        if time.monotonic() - begun > config.cluster.wait_s:  # the clock of the wall may jump meanwhile
            raise ClusterError(
                f"no room for {config.cluster.workers} workers within {config.cluster.wait_s:.0f} s: {_spell(short)}",
                where="cluster",
                todo="add nodes, stop other jobs, or lower cluster.workers or cluster.cpus_per_worker",
            )
        tries += 1
        if not told and tries > _GRACE_TRIES:
            tell("resources.waiting", short=_spell(short), until_s=until_s)
            told = True
        time.sleep(_POLL_S)


def _spell(short: dict[str, str]) -> str:
    return ", ".join(f"{key} {text}" for key, text in short.items())


def check_package(version: str) -> None:
    """Check on every node that the package is installed, before anything is started there.

    Args:
        version: The version that every node must have.

    Raises:
        ClusterError: A node lacks the package, has another version, or does not answer.
    """
    import ray

    tasks = _on_every_node(_question())
    done, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=_NODE_CHECK_TIMEOUT_S)
    for task in done:
        _check_answer(ray, task, tasks[task], version)
    if late:
        raise ClusterError(
            f"no answer within {_NODE_CHECK_TIMEOUT_S:.0f} s when asked which version is installed",
            where=", ".join(tasks[task] for task in late),
            todo="look at the node, or take it out of the cluster",
        )


def prepare_nodes(*, version: str, deadline_s: float, tell: Callable[..., object]) -> None:
    """Check on every node that the package is installed, and build the extensions there.

    Args:
        version: The version that every node must have.
        deadline_s: Limit for the builds, on all nodes at once.
        tell: Records events.

    Raises:
        ClusterError: A node lacks the package or has another version, or a build failed.
    """
    import ray

    tasks = _on_every_node(_preparation(), deadline_s)
    deadline = time.monotonic() + deadline_s + _NODE_CHECK_TIMEOUT_S
    waiting, told = list(tasks), False
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_QUIET_S)
        for task in done:
            _check_answer(ray, task, tasks[task], version)
        if waiting and not told:
            tell("extensions.building", nodes=[tasks[task] for task in waiting], limit_s=deadline_s)
            told = True
        if waiting and time.monotonic() > deadline:
            raise ClusterError(
                f"no answer within {deadline_s:.0f} s while building extensions",
                where=", ".join(tasks[task] for task in waiting),
                todo="look at the node; a C++ compiler at full load needs minutes",
            )
    if told:
        tell("extensions.ready")


def _on_every_node(function: Callable[..., str], *args: object) -> dict[Any, str]:
    """Start a function on each node; its tasks, each with its node's address."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    tasks: dict[Any, str] = {}
    remote = ray.remote(num_cpus=0, max_retries=0)(function)
    for node in ray.nodes():
        if node["Alive"]:
            pinned = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            tasks[pinned.remote(*args)] = str(node["NodeManagerAddress"])
    return tasks


def _check_answer(ray: Any, task: Any, address: str, version: str) -> None:
    try:
        found = ray.get(task)
    except (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError) as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ModuleNotFoundError):
            raise _not_installed(address, f"the node has no module {cause.name!r}") from error
        if isinstance(cause, ClusterError):
            raise ClusterError(cause.what, where=f"node {address}", todo=cause.todo) from error
        raise ClusterError(f"the check failed: {cause or error}", where=f"node {address}") from error
    if found != version:
        raise _not_installed(address, f"the node has stormsail {found}, the driver {version}")


def _not_installed(address: str, what: str) -> ClusterError:
    return ClusterError(
        what,
        where=f"node {address}",
        todo="install the same stormsail wheel in the image of every node, or add "
        '`--runtime-env-json \'{"pip": ["stormsail"]}\'` to `ray job submit`',
    )


# Both functions below give a function to run on a node. One inside another travels by value; by name, a node that
# lacks the package could not even load it, and would answer with a traceback of Ray's instead of a missing module.


def _question() -> Callable[[], str]:
    """Say which version is installed."""

    def version_here() -> str:
        from importlib.metadata import version

        import stormsail  # noqa: F401 - its metadata may be there without it

        return version("stormsail")

    return version_here


def _preparation() -> Callable[[float], str]:
    """Build what is missing and say which version is installed."""

    def prepare_here(deadline_s: float) -> str:
        from importlib.metadata import version

        from stormsail.platform.home import Home
        from stormsail.workers.extension_build import build_extensions
        from stormsail.workers.extensions import extension_folder

        build_extensions(extension_folder(Home.here()), deadline_s=deadline_s, notify=print)
        return version("stormsail")

    return prepare_here
