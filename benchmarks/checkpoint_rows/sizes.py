"""Bytes per parameter: everything that lies on the store, records included, beside what others write."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import zstandard
from checkpoint_rows.row import Row, make_row
from checkpoint_rows.saving import meta_of, rank_shards
from training_state import Recipe, State, States, states

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.keys import owner_of
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.rounding import to_bf16
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import ShardSpec
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

WORLD_SIZE = 2
RAW_BYTES = 14.0
_DCP_LIMIT_S = 300.0


def rows(*, small: bool) -> list[Row]:
    """All that is counted in bytes per parameter, always on the quickstart's model."""
    del small
    found = states(Recipe())
    keyframe, difference = ours(found, found.keyframe, found.later)
    rounded, rounded_difference = ours(found, found.rounded, found.rounded_later)
    references = {
        "DeepSpeed save_checkpoint": deepspeed()["bytes_per_parameter"],
        "torch DCP async_save with zstd": torch_dcp(found, found.later),
        "zstd-3 of the raw state": zstd3(found, found.later),
        "zstd-3 of what is kept of it": zstd3(found, found.later, weights=False),
    }
    made = []
    for name, other in references.items():
        made.append(make_row("keyframe", "B/parameter", keyframe, other, against=name, bars=(9.95, 9.85)))
        made.append(make_row("difference, 10 steps", "B/parameter", difference, other, against=name, bars=(9.3, 8.9)))
    made.append(make_row("rounded keyframe", "B/parameter", rounded, RAW_BYTES, against="raw"))
    figure = "rounded difference, 10 steps"
    made.append(make_row(figure, "B/parameter", rounded_difference, RAW_BYTES, against="raw", bars=(4.4, 3.5)))
    return made


def ours(found: States, first: State, second: State) -> tuple[float, float]:
    """Bytes per parameter of everything on the store, for a keyframe and a difference to it, proven by a restore."""
    store = MemoryStore()
    ensure_format(store)
    bases: list[Keyframe] = []
    for step, state in ((480, first), (490, second)):
        parts = []
        for rank in range(WORLD_SIZE):
            shards = rank_shards(found, state, rank, WORLD_SIZE)
            base = bases[rank] if step == 490 else None  # noqa: PLR2004 - the step of the difference
            part = write_part(
                store,
                generation=1,
                step=step,
                rank=rank,
                world_size=WORLD_SIZE,
                shards=shards,
                cancelled=lambda: False,
                base=base,
            )
            parts.append(part)
            if base is None:
                bases.append(Keyframe(part, shards))
        commit(store, parts, meta_of(step, WORLD_SIZE), parent=None, time_s=0.0)
        _prove(store, CheckpointRef(1, step), found, state)
    sizes = [
        sum(info.size_bytes for info in store.list() if owner_of(info.key) == CheckpointRef(1, step))
        for step in (480, 490)
    ]
    return sizes[0] / found.parameters, sizes[1] / found.parameters


def _prove(store: MemoryStore, ref: CheckpointRef, found: States, state: State) -> None:
    specs = [
        ShardSpec(name, component, found.shapes[name], 0, state[name, component].size) for name, component in state
    ]
    for shard in read_shards(store, load_manifest(store, ref), specs):
        expected = state[shard.spec.name, shard.spec.component]
        if not np.array_equal(shard.words, expected.view(np.uint32)):
            sys.exit(f"{shard.spec.label} of step {ref.step} came back as something else")


def zstd3(found: States, state: State, *, weights: bool = True) -> float:
    """Bytes per parameter of every raw tensor in one zstd frame of level 3, bf16 weights included if asked for."""
    compressor = zstandard.ZstdCompressor(level=3)
    sizes = [len(compressor.compress(values.tobytes())) for values in state.values()]
    sizes += [
        len(compressor.compress(to_bf16(values.view(np.uint32)).tobytes()))
        for (_, component), values in state.items()
        if weights and component == "master"
    ]
    return sum(sizes) / found.parameters


def torch_dcp(found: States, state: State) -> float:
    """Bytes per parameter that torch's `async_save` leaves with its zstd extension, bf16 weights included."""
    from torch.distributed.checkpoint._extension import ZStandard
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

    tensors = {f"{component}.{name}": torch.from_numpy(values) for (name, component), values in state.items()}
    weights = {name: values for (name, component), values in state.items() if component == "master"}
    tensors |= {f"model.{name}": torch.from_numpy(values).bfloat16() for name, values in weights.items()}
    with tempfile.TemporaryDirectory() as folder:
        writer = FileSystemWriter(folder, _extensions=[ZStandard()])
        saving = async_save(tensors, storage_writer=writer, no_dist=True)
        (saving.upload_completion if isinstance(saving, AsyncSaveResponse) else saving).result(_DCP_LIMIT_S)
        return _folder_bytes(Path(folder)) / found.parameters


def deepspeed() -> dict[str, float]:
    """What DeepSpeed's own checkpoint takes, from a process of its own."""
    script = Path(__file__).parent.parent / "deepspeed_reference.py"
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
