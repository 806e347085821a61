"""One rank with a real ZeRO-3 engine that holds a state of `training_state.py`, for what must be timed as a run does it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch._C._distributed_c10d import TCPStore
from training_state import QUICKSTART, Recipe, State, States

from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.home import Home
from stormsail.platform.messages import World
from stormsail.workers import world as worlds
from stormsail.workers.detect.verdict import DetectorState
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.extension_build import build_extensions
from stormsail.workers.extensions import extension_folder

CPU = torch.device("cpu")


def config_for(recipe: Recipe) -> RunConfig:
    """The quickstart with the recipe's model, one sample at a time."""
    overrides = ["drill.faults=[]", "drill.twin_step=null", "train.global_batch=1", "train.micro_batch=1"]
    overrides += [f"model.args.{name}={value}" for name, value in recipe.model]
    return load_config(QUICKSTART, overrides=overrides, environ={})


@contextmanager
def one_engine(config: RunConfig) -> Iterator[ZeroEngine]:
    """A world of one rank and one thread, and its engine."""
    build_extensions(extension_folder(Home.here()), notify=lambda text: print(text, file=sys.stderr))
    torch.set_num_threads(1)
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    worlds.form(World(1, 0, 1, "127.0.0.1", int(meeting.port)), local_rank=0, device=CPU, timeout_s=60.0)
    engine = ZeroEngine(config, precision="bf16", rank=0, world_size=1, device=CPU)
    try:
        yield engine
    finally:
        engine.destroy()
        worlds.leave()


def load(engine: ZeroEngine, found: States, state: State) -> None:
    """Let the engine hold the state."""
    shards = [
        Shard(ShardSpec(name, component, found.shapes[name], 0, values.size), values)
        for (name, component), values in state.items()
    ]
    engine.write_state(shards, engine.optimizer_scalars())


def meta_for(engine: ZeroEngine, step: int) -> CheckpointMeta:
    """What a run keeps besides the tensors."""
    return CheckpointMeta(
        step=step,
        applied=step,
        tokens=step,
        data_position=step,
        world_size=1,
        threads=1,
        precision="bf16",
        config_digest="0" * 64,
        optimizer=engine.optimizer_scalars(),
        detector=DetectorState().to_json(),
    )
