"""Starting a run, or going on with one: what a name means, who owns it, and which configuration rules."""

from __future__ import annotations

import os
import secrets
import threading
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stormsail.platform.alerts.references import check_references, keep_variables
from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.config.change import compare_configs
from stormsail.platform.config.dump import dump_config, parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import (
    CheckpointError,
    ConfigError,
    PreconditionFailedError,
    RunExistsError,
)
from stormsail.platform.home import Home
from stormsail.platform.journal import Journal
from stormsail.platform.lease import live_owner
from stormsail.platform.runs import RunPlace, begin_incarnation, find_run, no_such_run, withdraw_incarnation
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.probe import probe_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import nodes, places, telling
from stormsail.supervisor.alerting.desk import VARIABLES
from stormsail.supervisor.host.client import connect_ray, ensure_host, own_host
from stormsail.supervisor.ledger import Snapshot
from stormsail.supervisor.record import Record, fold
from stormsail.supervisor.run_spec import RunSpec
from stormsail.workers.quiet import mute_error_feed

_ANSWER_LIMIT_S = 60.0
_LONGEST_NAME = 63
_TWIN = "-twin"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the command line adds to the configuration.

    Attributes:
        fresh: Begin a new incarnation, whatever is there.
        must_resume: Fail where there is nothing to go on with.
        take_over: Take the lease of an owner that has not been heard of since it expired.
    """

    fresh: bool = False
    must_resume: bool = False
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class Launched:
    """A run whose supervisor was started.

    Attributes:
        actor: Handle of the supervisor actor.
        place: Where the run lives.
    """

    actor: Any
    place: RunPlace


def actor_name(place: RunPlace) -> str:
    """The supervisor's actor name. Of two incarnations only one can live, so the number is not part of it."""
    return f"run:{place.name}"


def connect(config: RunConfig, home: Home, notify: places.Notify, *, remembered: str | None = None) -> str | None:
    """Connect this process to the run's Ray: the configured one, `RAY_ADDRESS`, or the local host's own.

    Args:
        config: The run.
        home: This machine's folder.
        notify: Gets a line when a wait gets long.
        remembered: The address that the run was started at, should nothing else say.

    Returns:
        The address of a cluster that is not our own, or None.
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
    import logging

    import ray

    from stormsail.platform.errors import ClusterError

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


def launch(
    config: RunConfig,
    options: LaunchOptions,
    *,
    home: Home,
    config_folder: Path,
    notify: places.Notify,
    stop_step: int | None = None,
) -> Launched:
    """Decide what the name means and start the supervisor.

    Args:
        config: The run as asked for.
        options: From the command line.
        home: This machine's folder.
        config_folder: Folder of the YAML file; the user's modules are also looked for there.
        notify: Gets a line when a wait gets long.
        stop_step: End at this step instead of `train.steps`.

    Raises:
        RunExistsError: The name has a live owner, or its run is finished.
        NoSuchRunError, CheckpointError: `must_resume`, and there is nothing to go on with.
        ConfigError: The stored configuration cannot be changed like this.
        ClusterError: The cluster cannot be joined, or one of its nodes lacks the package.
        StorageError: The store is not there, or not fit for the purpose.
    """
    check_references(config.alerts, os.environ)
    root = places.root_address(config.storage, home, notify)
    store = open_store(root)
    _check_resumable(store, root, config.name, options)
    probe_store(store)
    ray_address = connect(config, home, notify)
    if ray_address is not None:
        # Also here, and not only by the supervisor, because it may itself land on a node without the package.
        nodes.check_package(version("stormsail"))
    place, stored, begun = _resolve(root, config, options)
    changes = _allowed_changes(stored, config) if stored is not None else ()
    places.remember(home, config.name, config.storage, ray_address)
    spec = _spec(config, place, home, config_folder, options)
    spec = replace(spec, changes=changes, stop_step=stop_step)
    keep_variables(config.alerts, os.environ, Path(spec.folder) / VARIABLES)
    notify(f"run {config.name}: state in {place.address.url}, logs in {spec.folder}/logs")
    try:
        return Launched(_create(spec, place), place)
    except RunExistsError:
        if begun:  # the name is the other one's
            withdraw_incarnation(root, place)
        raise


def _check_resumable(store: Any, root: StoreAddress, name: str, options: LaunchOptions) -> None:
    """`--must-resume` fails before anything is written or started."""
    if not options.must_resume:
        return
    place = find_run(root, name)
    if place is None:
        raise no_such_run(store, name)
    if not fold(Journal.read(place.store())).commits:
        raise CheckpointError(
            f"run {name!r} has no checkpoint to go on from",
            where=place.address.url,
            todo="start it without --must-resume",
        )


def _resolve(root: StoreAddress, config: RunConfig, options: LaunchOptions) -> tuple[RunPlace, Record | None, bool]:
    """The place to run in, what is known of the run that goes on there (None for a new one), and whether it is new."""
    place = find_run(root, config.name)
    if place is None:
        return _begin(root, config.name), None, True
    _refuse_live_owner(place)
    _refuse_owner_elsewhere(place, take_over=options.take_over)
    if options.fresh:
        return _begin(root, config.name), None, True
    record = fold(Journal.read(place.store()))
    if not record.config:
        return place, None, False
    if record.outcome == "finished" and not _extends(record, config):
        steps = parse_dump(record.config).train.steps
        raise RunExistsError(
            f"run {config.name!r} is finished ({steps} steps)",
            where=place.address.url,
            todo=f"extend it with `--set train.steps={steps * 2}`, choose another name with `--set name=...`, "
            "or begin anew with `--fresh`",
        )
    return place, record, False


def _begin(root: StoreAddress, name: str) -> RunPlace:
    try:
        return begin_incarnation(root, name)
    except PreconditionFailedError as error:
        raise RunExistsError(
            f"run {name!r} was started by somebody else at this very moment",
            where=root.url,
            todo=f"follow it with `stormsail attach {name}`",
        ) from error


def _refuse_live_owner(place: RunPlace) -> None:
    snapshot = _look_at_owner(place)
    if snapshot is None:
        return
    claims = [event for event in snapshot.events if event.kind in ("run.started", "run.continued")]
    owner = (
        f"owned by {claims[-1].data['owner']} since {telling.clock(claims[-1].time_s)}" if claims else "just started"
    )
    raise RunExistsError(
        f"run {place.name!r} is live: {owner}, at step {snapshot.step}",
        where=place.address.url,
        todo=f"follow it with `stormsail attach {place.name}`, end it with `stormsail stop {place.name}`, "
        "or choose another name with `--set name=...`",
    )


def _look_at_owner(place: RunPlace) -> Snapshot | None:
    """What the run's supervisor shows; None if there is none, or none any more."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    pause, until = threading.Event(), time.monotonic() + _ANSWER_LIMIT_S
    while True:
        try:
            actor = ray.get_actor(actor_name(place), namespace="stormsail")
        except ValueError:
            return None
        try:
            snapshot: Snapshot = ray.get(actor.look.remote((0, 0)), timeout=_ANSWER_LIMIT_S)
            if not snapshot.over:
                return snapshot
            ray.get(actor.retire.remote(), timeout=_ANSWER_LIMIT_S)
        except (GetTimeoutError, RayActorError) as error:
            # It leaves at this moment, because its run is over, or Ray is starting it again.
            if time.monotonic() < until:
                pause.wait(0.5)
                continue
            raise RunExistsError(
                f"run {place.name!r} has a supervisor that does not answer; Ray may be starting it again",
                where=place.address.url,
                todo=f"try `stormsail attach {place.name}` in a minute",
            ) from error
        _wait_until_gone(place)
        return None


def _refuse_owner_elsewhere(place: RunPlace, *, take_over: bool) -> None:
    """The same store can serve several clusters: the lease tells of an owner that this one does not know."""
    now_s = time.time()
    held = live_owner(place.store(), now=now_s)
    if held is not None and not (take_over and held.is_ahead(now_s)):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(held.started_s))
        raise RunExistsError(
            f"run {place.name!r} is owned by {held.owner.host}, pid {held.owner.pid}, since {since}",
            where=place.address.url,
            todo=f"follow it there with `stormsail attach {place.name}`, or choose another name with `--set name=...`",
        )


def _wait_until_gone(place: RunPlace) -> None:
    import ray

    pause = threading.Event()
    for _ in range(200):
        try:
            ray.get_actor(actor_name(place), namespace="stormsail")
        except ValueError:
            return
        pause.wait(0.1)
    raise RunExistsError(
        f"the supervisor of the last run called {place.name!r} does not leave", todo="try again in a minute"
    )


def _extends(record: Record, config: RunConfig) -> bool:
    return config.train.steps > parse_dump(record.config).train.steps


def _allowed_changes(record: Record, asked: RunConfig) -> tuple[str, ...]:
    """What changes against the stored configuration, in words; what may not change is an error."""
    change = compare_configs(parse_dump(record.config), asked)
    if change.refused:
        listed = "; ".join(f"{item.key}: {item.old!r} -> {item.new!r}" for item in change.refused)
        raise ConfigError(
            f"run {asked.name!r} goes on with the configuration that it was started with, but these differ: {listed}",
            todo="put them back, or begin another run: `--set name=...`, or `--fresh`",
        )
    exact = [f"{item.key}: {item.old} -> {item.new}" for item in change.allowed]
    return (*exact, *(f"{item.key}: {item.old} -> {item.new} (no longer bit for bit)" for item in change.inexact))


def _spec(
    config: RunConfig,
    place: RunPlace,
    home: Home,
    config_folder: Path,
    options: LaunchOptions,
) -> RunSpec:
    folder = home.run(config.name) / str(place.incarnation)
    return RunSpec(
        actor=actor_name(place),
        name=config.name,
        config=dump_config(config),
        store=place.address,
        folder=str(folder),
        ray_path=config.cluster.shared_path or str(folder / "ray"),
        import_paths=_import_paths(config_folder),
        version=version("stormsail"),
        owner_id=secrets.token_hex(8),
        take_over=options.take_over,
        env={} if own_host(home) is not None else {"STORMSAIL_HOME": str(home.path)},  # which its Ray was started with
    )


def _import_paths(config_folder: Path) -> tuple[str, ...]:
    """Where the user's modules are looked for: the working folder and the configuration's, in that order.

    Inside a Ray job the working folder is unpacked elsewhere on each node, so paths below it are kept relative to it.
    """
    here = Path.cwd()
    folders = [here, config_folder.resolve()]
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return tuple(str(f.relative_to(here)) if f.is_relative_to(here) else str(f) for f in folders)
    return tuple(dict.fromkeys(str(folder) for folder in folders))


def _create(spec: RunSpec, place: RunPlace) -> Any:
    from stormsail.supervisor.actor import create

    try:
        return create(spec)
    except ValueError as error:  # Ray's way to say that the name is taken
        raise RunExistsError(
            f"run {place.name!r} was started by somebody else at this very moment",
            todo=f"follow it with `stormsail attach {place.name}`",
        ) from error


def twin_of(config: RunConfig) -> RunConfig:
    """The same run without faults and evaluations, under a name of its own."""
    drill = config.drill.model_copy(update={"faults": (), "twin_step": None})
    name = f"{config.name[: _LONGEST_NAME - len(_TWIN)]}{_TWIN}"
    return config.unevaluated().model_copy(update={"name": name, "drill": drill, "alerts": AlertsSection()})


def outcome_of(place: RunPlace) -> Record:
    """How the run stands, from its journal."""
    return fold(Journal.read(place.store()))
