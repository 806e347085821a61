"""A state of `training_state.py` as the ranks of a world hold it, and its metadata."""

from __future__ import annotations

from training_state import COMPONENTS, State, States

from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.checkpoint.shards import Shard, ShardSpec


def rank_shards(found: States, state: State, rank: int, world_size: int) -> list[Shard]:
    """The shards of one rank: each tensor cut into equal ranges, as ZeRO-3 cuts them."""
    shards = []
    for name, shape in found.shapes.items():
        for component in COMPONENTS:
            values = state[name, component]
            start, stop = (values.size * edge // world_size for edge in (rank, rank + 1))
            shards.append(Shard(ShardSpec(name, component, shape, start, stop - start), values[start:stop]))
    return shards


def meta_of(step: int, world_size: int) -> CheckpointMeta:
    """Metadata as a run writes it."""
    return CheckpointMeta(
        step=step,
        applied=step,
        tokens=step * 1024,
        data_position=step * 8,
        world_size=world_size,
        threads=1,
        precision="bf16",
        config_digest="0" * 64,
    )
