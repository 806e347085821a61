"""The commands that need nothing but a file: `validate`, `schema`, `init`, `plan`; none imports torch or Ray."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from stormsail.platform.certificate_file import note_for
from stormsail.platform.config.dump import config_digest
from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.schema import config_schema
from stormsail.platform.config.starter import starter_yaml
from stormsail.platform.console import emit, emit_json
from stormsail.platform.errors import ConfigError
from stormsail.platform.plan import plan_run
from stormsail.platform.plan_text import plan_text

FileArgument = Annotated[Path, typer.Argument(help="The run's YAML file.", metavar="FILE")]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key, as in train.steps=200; may be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")]


def register(app: typer.Typer) -> None:
    """Add this package's commands."""
    app.command()(init)
    app.command()(validate)
    app.command()(schema)
    app.command()(plan)


def validate(file: FileArgument, *, overrides: SetOption = [], as_json: JsonOption = False) -> None:  # noqa: B006 - typer reads it, nobody writes to it
    """Check a configuration: every problem at once, each with its line and the nearest right thing."""
    config = load_config(file, overrides=overrides, environ=os.environ)
    if as_json:
        emit_json(
            {"valid": True, "file": file, "digest": config_digest(config), "config": config.model_dump(mode="json")}
        )
        return
    emit(f"{file}: valid")
    emit(f"  {_summary(config)}")


def schema(*, as_json: JsonOption = False) -> None:
    """Write the configuration's JSON Schema, for editors."""
    # The schema is JSON as it is; a version key of ours would make it something else.
    emit(json.dumps(config_schema(), indent=None if as_json else 2))


def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.", metavar="FILE")] = Path("stormsail.yaml"),
    *,
    as_json: JsonOption = False,
) -> None:
    """Write a configuration to start from: runs at once on CPUs, every other key in comments."""
    text = starter_yaml(_run_name(file), file=str(file))
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise ConfigError(
            "the file exists and is not overwritten", where=str(file), todo="choose another name"
        ) from None
    except OSError as error:
        raise ConfigError(f"the file cannot be written: {error.strerror}", where=str(file)) from error
    if as_json:
        emit_json({"file": file, "name": _run_name(file)})
    else:
        emit(f"{file}: written; start it with `stormsail train {file}`")


def plan(
    file: FileArgument,
    *,
    overrides: SetOption = [],  # noqa: B006 - typer reads it, nobody writes to it
    bandwidth_mb_s: Annotated[
        float, typer.Option(min=0.001, help="What all workers together reach to the store, in MB/s.")
    ] = 100.0,
    params: Annotated[
        float | None, typer.Option(min=1, help="Trained parameters, for a model of your own: 7e9.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a run will need and do: batches, memory, checkpoints, the ladder's limits."""
    for option, value in (("--bandwidth-mb-s", bandwidth_mb_s), ("--params", params or 1)):
        if not math.isfinite(value):
            raise ConfigError(f"expected a finite number, found {value}", where=option)
    config = load_config(file, overrides=overrides, environ=os.environ)
    made = plan_run(config, bandwidth_mb_s=bandwidth_mb_s, parameters=None if params is None else int(params))
    note = note_for(file, config)
    if note is not None:
        made = replace(made, notes=(*made.notes, f"{note[0].upper()}{note[1:]}."))
    if as_json:
        emit_json({"plan": made})
    else:
        emit(plan_text(made))


def _summary(config: RunConfig) -> str:
    return (
        f"run {config.name}: {config.train.steps} steps of {config.train.global_batch} x {config.data.sequence_tokens} "
        f"tokens on {config.cluster.workers} workers, {config.train.precision}, storage {config.storage.url}"
    )


def _run_name(file: Path) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("-._")[:63]
    return name or "run"
