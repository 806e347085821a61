"""A world of one rank in the test's own process: a real process group, real DeepSpeed engines, no Ray."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import TCPStore

from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.manifest import CheckpointMeta, Manifest
from stormsail.platform.checkpoint.shards import Shard
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.config.model import RunConfig
from stormsail.platform.messages import CheckpointRef, World
from stormsail.platform.storage.store import ObjectStore
from stormsail.workers import world as worlds
from stormsail.workers.batches import Batch
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.engine import ZeroEngine

CPU = torch.device("cpu")
VOCAB, SEQUENCE, BATCH = 32, 8, 4
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STORMSAIL_HOME")


@contextmanager
def world_of_one(home: Path, extensions: Path, *, generation: int = 1) -> Iterator[World]:
    """Form the world, and leave it in the end."""
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    with join_as(World(generation, 0, 1, "127.0.0.1", int(meeting.port)), home, extensions) as made:
        yield made


@contextmanager
def join_as(made: World, home: Path, extensions: Path) -> Iterator[World]:
    """Take a place in a world, with a home of its own, and leave it in the end."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "extensions").exists():
        (home / "extensions").symlink_to(extensions.parent, target_is_directory=True)
    os.environ["STORMSAIL_HOME"] = str(home)
    torch.set_num_threads(1)
    try:
        worlds.form(made, local_rank=made.rank, device=CPU, timeout_s=60.0 if made.world_size == 1 else 400.0)
        # Each engine's end collects garbage; what the whole session has imported need not be looked through each time.
        gc.freeze()
        yield made
    finally:
        gc.unfreeze()
        worlds.leave()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def tiny_config(**changes: Any) -> RunConfig:
    """A model of some thousand parameters."""
    values: dict[str, Any] = {
        "name": "tiny",
        "train": {"steps": 12, "global_batch": BATCH, "micro_batch": BATCH // 2},
        "model": {"args": {"vocab_size": VOCAB, "d_model": 16, "layers": 1, "heads": 2}},
        "data": {"sequence_tokens": SEQUENCE},
        "schedule": {"warmup_steps": 2},
        "cluster": {"workers": 1},
        "checkpoint": {"every_steps": 5, "deadline_s": 30.0},
        "tracking": {"uri": None},
    }
    return RunConfig.model_validate({**values, **changes})


def build(config: RunConfig, precision: str = "bf16") -> ZeroEngine:
    """An engine of the only rank."""
    return ZeroEngine(config, precision=precision, rank=0, world_size=1, device=CPU)


def random_batch(seed: int) -> Batch:
    """A micro-batch."""
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(0, VOCAB, (BATCH, SEQUENCE + 1)))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), torch.ones(BATCH, SEQUENCE)


def backward(engine: ZeroEngine, seed: int) -> float:
    """One forward and backward pass; gives the loss."""
    return engine.forward_backward(random_batch(seed), 1.0 / (BATCH * SEQUENCE), last=True)


def train(engine: ZeroEngine, seeds: range) -> list[float]:
    """Some steps at a constant rate; gives their losses."""
    losses = []
    for seed in seeds:
        losses.append(backward(engine, seed))
        engine.set_learning_rate(1e-2)
        assert engine.apply()
    return losses


def digest_of(shards: list[Shard]) -> Digest:
    """The digest of a whole state."""
    return sum((Digest.of(shard) for shard in shards), Digest())


def save(engine: ZeroEngine, store: ObjectStore, ref: CheckpointRef, **changes: Any) -> Manifest:
    """Commit the engine's state as the checkpoint `ref`."""
    part = write_part(
        store,
        generation=ref.generation,
        step=ref.step,
        rank=0,
        world_size=1,
        shards=engine.copy_state(),
        cancelled=lambda: False,
    )
    return commit(store, [part], meta_of(engine, ref, **changes), parent=None, time_s=1.0)


def meta_of(engine: ZeroEngine, ref: CheckpointRef, **changes: Any) -> CheckpointMeta:
    """What belongs to the engine's state besides the tensors."""
    values: dict[str, Any] = {
        "step": ref.step,
        "applied": ref.step,
        "tokens": ref.step * BATCH * SEQUENCE,
        "data_position": ref.step * BATCH,
        "world_size": 1,
        "threads": 1,
        "precision": engine.precision,
        "config_digest": "c" * 64,
        "optimizer": engine.optimizer_scalars(),
        "detector": DetectorState().to_json(),
    }
    return CheckpointMeta(**{**values, **changes})
