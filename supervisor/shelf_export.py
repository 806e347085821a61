"""A checkpoint's weights as safetensors files, in the layout that Hugging Face libraries read; needs no cluster.

One tensor is in memory at a time, each verified as by a restore. What is written are the fp32 master weights, or
bf16 as the engine derives it from them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.leases import ReadLease
from stormsail.platform.checkpoint.manifest import Manifest
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.rounding import to_bf16
from stormsail.platform.checkpoint.safetensors_format import (
    SafetensorsWriter,
    TensorPlan,
    WrittenFile,
    file_names,
    index_of,
    split_files,
)
from stormsail.platform.checkpoint.shards import ShardSpec
from stormsail.platform.errors import CheckpointError, ConfigError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore

DTYPES = {"fp32": "F32", "bf16": "BF16"}
FILE_BYTES = 5_000_000_000
INDEX_NAME = "model.safetensors.index.json"
_MASTER = "master"


def export_weights(
    store: ObjectStore, ref: CheckpointRef, folder: Path, *, dtype: str = "fp32", file_bytes: int = FILE_BYTES
) -> list[WrittenFile]:
    """Write the weights of a checkpoint; what is there under the same names is never overwritten.

    Args:
        store: The run's store.
        ref: Which checkpoint.
        folder: Made if it is not there.
        dtype: `fp32` or `bf16`.
        file_bytes: Tensors' bytes in one file, before another is begun.

    Returns:
        The files, with an index last if there are several.

    Raises:
        ConfigError: The dtype is unknown, or the files cannot be written there.
        CheckpointError: The checkpoint is not whole, or holds no weights.
        StorageError: The store failed.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"weights cannot be written as {dtype!r}", todo=f"choose {' or '.join(DTYPES)}")
    manifest = load_manifest(store, ref)
    files = split_files(_plans(manifest, DTYPES[dtype]), file_bytes)
    names = file_names(len(files))
    _make_room(folder, [*names, INDEX_NAME])
    metadata = {"format": "pt", "step": str(manifest.step), "state_digest": manifest.root}
    with ReadLease(store, [ref]) as lease:
        written = [
            _write_file(store, manifest, folder / name, plans, metadata, renew=lease.renew)
            for name, plans in zip(names, files, strict=True)
        ]
    if len(files) > 1:
        written.append(_write_index(folder / INDEX_NAME, index_of(files, names)))
    return written


def _plans(manifest: Manifest, dtype: str) -> list[TensorPlan]:
    plans = [
        TensorPlan(tensor.name, dtype, tensor.shape) for tensor in manifest.tensors if _MASTER in tensor.components
    ]
    if not plans:
        raise CheckpointError(f"step {manifest.step} holds no master weights, so there is nothing to export")
    return plans


def _make_room(folder: Path, names: Sequence[str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder cannot be made: {error.strerror}", where=str(folder)) from error
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise ConfigError(
            f"there is a {taken[0]} already, and it is not overwritten", where=str(folder), todo="choose another --out"
        )


def _write_file(
    store: ObjectStore,
    manifest: Manifest,
    path: Path,
    plans: Sequence[TensorPlan],
    metadata: dict[str, str],
    *,
    renew: Callable[[], None],
) -> WrittenFile:
    with SafetensorsWriter(path, plans, metadata) as writer:
        for plan in plans:
            renew()
            spec = ShardSpec(plan.name, _MASTER, plan.shape, 0, math.prod(plan.shape))
            (shard,) = read_shards(store, manifest, [spec])
            writer.add(plan.name, to_bf16(shard.words) if plan.dtype == "BF16" else shard.words.view(np.float32))
        return writer.finish()


def _write_index(path: Path, body: bytes) -> WrittenFile:
    try:
        path.write_bytes(body)
    except OSError as error:
        raise ConfigError(f"the index cannot be written: {error.strerror}", where=str(path)) from error
    return WrittenFile(path.name, len(body), hashlib.sha256(body).hexdigest())
