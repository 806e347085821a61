"""More of `stormsail checkpoints`: compare two, see what retention would delete, keep some, take weights elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stormsail.platform.console import emit, emit_json
from stormsail.platform.errors import ConfigError
from stormsail.platform.home import Home
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.supervisor.commands import JsonOption, RunArgument, StorageOption

RefArgument = Annotated[str, typer.Argument(help="STEP, GENERATION/STEP, newest, good, or best.", metavar="CHECKPOINT")]

_MB = 1_000_000


def register(shelf: typer.Typer) -> None:
    """Add the commands to `stormsail checkpoints`."""
    shelf.command("diff")(checkpoints_diff)
    shelf.command("prune")(checkpoints_prune)
    shelf.command("export")(checkpoints_export)
    shelf.command("pin")(checkpoints_pin)
    shelf.command("unpin")(checkpoints_unpin)
    shelf.command("compact")(checkpoints_compact)


def _notify(text: str) -> None:
    typer.echo(text, err=True)


def _find(run: str, checkpoint: str, storage: str | None) -> tuple[RunPlace, CheckpointRef]:
    """Where a run lives, and the checkpoint of it that somebody named.

    Raises:
        ConfigError: There is no such run, or no such checkpoint.
    """
    from stormsail.supervisor import places
    from stormsail.supervisor.shelf import find_ref

    place = places.locate(Home.here(), run, storage, _notify)
    return place, find_ref(place, checkpoint)


def checkpoints_diff(
    run: RunArgument,
    first: RefArgument,
    second: RefArgument,
    *,
    other: Annotated[str | None, typer.Option("--with", metavar="RUN", help="Where the second one is.")] = None,
    values: Annotated[bool, typer.Option(help="Also read and measure what differs.")] = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is different between two checkpoints; exit 0 whether or not anything is."""
    from stormsail.platform.checkpoint.commits import load_manifest
    from stormsail.supervisor import places
    from stormsail.supervisor.shelf import find_ref
    from stormsail.supervisor.shelf_diff import diff_manifests, diff_values, render, to_json

    home = Home.here()
    sides = []
    for name, spoken in ((run, first), (other or run, second)):
        place = places.locate(home, name, storage, _notify)
        store = place.store()
        sides.append((store, load_manifest(store, find_ref(place, spoken))))
    found = diff_values(*sides) if values else diff_manifests(sides[0][1], sides[1][1])
    if as_json:
        emit_json({"first": sides[0][1].ref, "second": sides[1][1].ref, **to_json(found)})
    else:
        emit(render(found))


def checkpoints_prune(
    run: RunArgument,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say it; deleting is the run's own business.")
    ] = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what retention keeps and what it would delete now, by the run's own settings."""
    from stormsail.supervisor import places
    from stormsail.supervisor.shelf_plan import plan_shelf, render_plan

    if not dry_run:
        raise ConfigError(
            "a run deletes by itself, after each commit, under its own lease; from outside it can only be asked about",
            where="checkpoints prune",
            todo="say --dry-run; to keep less, lower checkpoint.keep_last and go on with the run",
        )
    place = places.locate(Home.here(), run, storage, _notify)
    rows = plan_shelf(place)
    if as_json:
        emit_json({"run": place.name, "checkpoints": rows})
    else:
        emit(render_plan(rows))


def checkpoints_export(
    run: RunArgument,
    checkpoint: RefArgument = "newest",
    *,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the files go; made if need be.")],
    file_format: Annotated[str, typer.Option("--format", help="Only safetensors so far.")] = "safetensors",
    dtype: Annotated[str, typer.Option(help="fp32 (the master weights) or bf16.")] = "fp32",
    file_mb: Annotated[int, typer.Option(min=1, help="Begin another file beyond this size.")] = 5000,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a checkpoint's weights as files that other tools read, each with its SHA-256."""
    from stormsail.supervisor.shelf_export import export_weights

    if file_format != "safetensors":
        raise ConfigError(f"weights cannot be written as {file_format!r}", todo="choose --format safetensors")
    place, ref = _find(run, checkpoint, storage)
    written = export_weights(place.store(), ref, out, dtype=dtype, file_bytes=file_mb * _MB)
    if as_json:
        emit_json({"run": place.name, "checkpoint": ref, "folder": out, "files": written})
        return
    emit(f"step {ref.step} of generation {ref.generation}, {dtype}, in {out}")
    for item in written:
        emit(f"  {item.sha256}  {item.name} ({item.size_bytes / _MB:.1f} MB)")


def checkpoints_pin(
    run: RunArgument, checkpoint: RefArgument, *, storage: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Keep a checkpoint until it is unpinned, whatever retention would do."""
    from stormsail.supervisor.shelf_keep import pin_checkpoint

    place, ref = _find(run, checkpoint, storage)
    new = pin_checkpoint(place.store(), ref)
    if as_json:
        emit_json({"run": place.name, "checkpoint": ref, "pinned": True, "changed": new})
    else:
        emit(f"step {ref.step} of generation {ref.generation} {'is' if new else 'was already'} pinned")


def checkpoints_unpin(
    run: RunArgument, checkpoint: RefArgument, *, storage: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Give a pinned checkpoint back to retention."""
    from stormsail.platform.checkpoint.pins import unpin

    place, ref = _find(run, checkpoint, storage)
    changed = unpin(place.store(), ref)
    if as_json:
        emit_json({"run": place.name, "checkpoint": ref, "pinned": False, "changed": changed})
    else:
        emit(f"step {ref.step} of generation {ref.generation} {'is no longer' if changed else 'was not'} pinned")


def checkpoints_compact(
    run: RunArgument, checkpoint: RefArgument, *, storage: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Write a checkpoint with differences once more as a keyframe; it then needs no other one."""
    from stormsail.supervisor.shelf_keep import compact_checkpoint

    place, ref = _find(run, checkpoint, storage)
    written = compact_checkpoint(place.store(), ref)
    if as_json:
        emit_json({"run": place.name, "checkpoint": ref, "bytes": written})
    elif written is None:
        emit(f"step {ref.step} of generation {ref.generation} is a keyframe already")
    else:
        emit(f"step {ref.step} of generation {ref.generation} is a keyframe of {written / _MB:.1f} MB now")
