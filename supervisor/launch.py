"""Starting a run, or going on with one: which configuration rules, and what its supervisor is told."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stormsail.platform.alerts.references import check_references, keep_variables
from stormsail.platform.config.change import compare_configs
from stormsail.platform.config.dump import dump_config, parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError, RunExistsError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace, withdraw_incarnation
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.probe import probe_store
from stormsail.supervisor import nodes, places
from stormsail.supervisor.alerting.desk import VARIABLES
from stormsail.supervisor.cluster import connect
from stormsail.supervisor.host.client import own_host
from stormsail.supervisor.record import Record
from stormsail.supervisor.run_name import actor_name, check_resumable, resolve
from stormsail.supervisor.run_spec import RunSpec


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
    if options.must_resume:
        check_resumable(store, root, config.name)
    probe_store(store)
    ray_address = connect(config, home, notify)
    if ray_address is not None:
        # Also here, and not only by the supervisor, because it may itself land on a node without the package.
        nodes.check_package(version("stormsail"))
    meaning = resolve(root, config, fresh=options.fresh, take_over=options.take_over)
    place = meaning.place
    changes = _allowed_changes(meaning.stored, config) if meaning.stored is not None else ()
    places.remember(home, config.name, config.storage, ray_address)
    spec = _spec(config, place, home, config_folder, options)
    spec = replace(spec, changes=changes, stop_step=stop_step)
    keep_variables(config.alerts, os.environ, Path(spec.folder) / VARIABLES)
    notify(f"run {config.name}: state in {place.address.url}, logs in {spec.folder}/logs")
    try:
        return Launched(_create(spec, place), place)
    except RunExistsError:
        if meaning.begun:  # the name is the other one's
            withdraw_incarnation(root, place)
        raise


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
