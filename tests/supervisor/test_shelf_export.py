"""Exported weights are those of the checkpoint, in files that other tools read, and nothing is overwritten."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.checkpoint.rounding import to_bf16
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.errors import CheckpointError, ConfigError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.supervisor.shelf_export import export_weights

REF = CheckpointRef(1, 10)
SHAPES: dict[str, tuple[int, ...]] = {"embed.weight": (7, 5), "norm": (), "empty": (0, 4), "head.weight": (4, 6)}


def weights() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)
    return {name: random.normal(0, 1, math.prod(shape)).astype(np.float32) for name, shape in SHAPES.items()}


def saved(components: tuple[str, ...] = ("master", "exp_avg"), world_size: int = 3) -> MemoryStore:
    store = MemoryStore()
    ensure_format(store)
    parts = []
    for rank in range(world_size):
        shards = []
        for name, values in weights().items():
            start, stop = rank * values.size // world_size, (rank + 1) * values.size // world_size
            spec = [ShardSpec(name, component, SHAPES[name], start, stop - start) for component in components]
            shards += [
                Shard(item, values[start:stop] * np.float32(1 if item.component == "master" else 9)) for item in spec
            ]
        parts.append(
            write_part(
                store, generation=1, step=10, rank=rank, world_size=world_size, shards=shards, cancelled=lambda: False
            )
        )
    meta = CheckpointMeta(
        step=10,
        applied=10,
        tokens=0,
        data_position=0,
        world_size=world_size,
        threads=1,
        precision="bf16",
        config_digest="c" * 64,
    )
    commit(store, parts, meta, parent=None, time_s=1.0)
    return store


def read_back(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    body = path.read_bytes()
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    data = body[8 + length :]
    return {
        name: (entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def test_the_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    (written,) = export_weights(saved(), REF, tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    found = read_back(path)
    assert found.keys() == SHAPES.keys()
    for name, values in weights().items():
        assert found[name] == ("F32", SHAPES[name], values.tobytes())


def test_bf16_is_rounded_from_the_master_weights(tmp_path: Path) -> None:
    export_weights(saved(), REF, tmp_path, dtype="bf16")
    found = read_back(tmp_path / "model.safetensors")
    for name, values in weights().items():
        assert found[name] == ("BF16", SHAPES[name], to_bf16(values.view(np.uint32)).tobytes())


def test_several_files_have_an_index(tmp_path: Path) -> None:
    written = export_weights(saved(), REF, tmp_path, file_bytes=100)
    names = [item.name for item in written]
    assert names == [f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)] + ["model.safetensors.index.json"]
    index = json.loads((tmp_path / names[-1]).read_text())
    assert index["weight_map"].keys() == SHAPES.keys()
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in weights().values())
    for name, file in index["weight_map"].items():
        assert name in read_back(tmp_path / file)


def test_the_header_says_which_state_it_is(tmp_path: Path) -> None:
    store = saved()
    export_weights(store, REF, tmp_path)
    body = (tmp_path / "model.safetensors").read_bytes()
    metadata = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])["__metadata__"]
    assert metadata == {"format": "pt", "step": "10", "state_digest": load_manifest(store, REF).root}


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    store = saved()
    (tmp_path / "model.safetensors").write_text("mine")
    with pytest.raises(ConfigError, match="not overwritten"):
        export_weights(store, REF, tmp_path)
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_a_damaged_checkpoint_gives_no_file(tmp_path: Path) -> None:
    store = saved()
    key = next(info.key for info in store.list("packs/"))
    store.put(key, bytes(len(store.get(key))))
    with pytest.raises(CheckpointError, match="damaged"):
        export_weights(store, REF, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fp32 or bf16"):
        export_weights(saved(), REF, tmp_path, dtype="int4")
    with pytest.raises(CheckpointError, match="no master weights"):
        export_weights(saved(("exp_avg",)), REF, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        export_weights(saved(), REF, tmp_path / "file")
