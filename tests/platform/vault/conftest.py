"""A vault in a folder that stands in for shared memory, with snapshots of a small state in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.run_kit import checkpoint_meta

from stormsail.platform.checkpoint.manifest import Manifest, RankPart
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.vault import slots
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.image import WORD_BYTES, ImageRecord, describe, offsets
from stormsail.platform.vault.slots import Slot

REF = CheckpointRef(1, 10)
SHAPES: dict[str, tuple[int, ...]] = {"embed": (7, 5), "bias": (3,), "head": (4, 6)}
COMPONENTS = ("exp_avg", "master")


class Saved:
    """A checkpoint of two ranks: on a store, and as images in slots of a vault."""

    def __init__(self, folder: VaultFolder, *, world_size: int = 2) -> None:
        random = np.random.default_rng(3)
        self.folder = folder
        self.state = {
            (name, component): random.normal(size=int(np.prod(shape))).astype(np.float32)
            for name, shape in SHAPES.items()
            for component in COMPONENTS
        }
        self.store = MemoryStore()
        ensure_format(self.store)
        self.slots: list[Slot] = []
        self.parts = [self._save(rank, world_size) for rank in range(world_size)]
        meta = checkpoint_meta(REF.step).model_copy(update={"world_size": world_size})
        self.manifest: Manifest = commit(self.store, self.parts, meta, parent=None, time_s=1.0)

    def specs(self, rank: int, world_size: int) -> list[ShardSpec]:
        found = []
        for name, shape in SHAPES.items():
            size = int(np.prod(shape))
            start, stop = size * rank // world_size, size * (rank + 1) // world_size
            found += [ShardSpec(name, part, shape, start, stop - start) for part in COMPONENTS if stop > start]
        return found

    def _save(self, rank: int, world_size: int) -> RankPart:
        specs = self.specs(rank, world_size)
        starts, size = offsets(specs)
        slot = Slot.lease(slots.create(self.folder, f"{rank:05d}00000", size))
        assert slot is not None
        assert slot.begin()
        shards = []
        for spec, start in zip(specs, starts, strict=True):
            words = slot.words[start // WORD_BYTES :][: spec.count]
            words[:] = self.state[spec.name, spec.component][spec.start : spec.stop].view(np.uint32)
            shards.append(Shard(spec, words.view(np.float32)))
        part = write_part(
            self.store,
            generation=REF.generation,
            step=REF.step,
            rank=rank,
            world_size=world_size,
            shards=shards,
            cancelled=lambda: False,
        )
        slot.seal(describe(part, shards, starts))
        self.slots.append(slot)
        return part

    def record(self, rank: int) -> ImageRecord:
        record = self.slots[rank].record
        assert record is not None
        return record

    def flip(self, rank: int, *, byte: int = 5) -> None:
        """Change one bit of a rank's image, behind everybody's back."""
        self.slots[rank].bytes[byte] ^= 1

    def is_state(self, shards: list[Shard]) -> bool:
        """Whether these are the saved values, in every bit."""
        return all(
            np.array_equal(
                shard.words,
                self.state[shard.spec.name, shard.spec.component][shard.spec.start : shard.spec.stop].view(np.uint32),
            )
            for shard in shards
        )


@pytest.fixture
def folder(tmp_path: Path) -> VaultFolder:
    (tmp_path / "shm").mkdir()
    made = VaultFolder(tmp_path / "shm" / "home" / "run-node")
    made.make(1 << 20)
    return made


@pytest.fixture
def saved(folder: VaultFolder) -> Iterator[Saved]:
    made = Saved(folder)
    yield made
    for slot in made.slots:
        slot.close()
