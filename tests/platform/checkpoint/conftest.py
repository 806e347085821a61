"""A small training state, saved and restored by the real writer and reader, and stores that die half-way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.differences import tiny_keyframe

from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.lines import Generation, create_generation
from stormsail.platform.checkpoint.manifest import CheckpointMeta, Manifest, RankPart
from stormsail.platform.checkpoint.reader import load_manifest, read_shards
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import commit, ensure_format, write_part
from stormsail.platform.errors import StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import MultipartUpload, ObjectInfo, ObjectStore

State: TypeAlias = dict[tuple[str, str], NDArray[np.float32]]

SHAPES: dict[str, tuple[int, ...]] = {"embed.weight": (7, 5), "layer.0.bias": (3,), "norm": (), "head.weight": (4, 6)}
COMPONENTS = ("master", "exp_avg", "exp_avg_sq")


class CrashingStore:
    """Passes `limit` changing operations through and then fails all; the last may take effect before it fails."""

    def __init__(self, inner: ObjectStore, limit: int, *, takes_effect: bool = False) -> None:
        self.inner = inner
        self.left = limit
        self.takes_effect = takes_effect

    @property
    def url(self) -> str:
        return self.inner.url

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if self._dies() and self.takes_effect:
            self.inner.put(key, data, if_none_match=if_none_match, if_match=if_match)
        self._check()
        return self.inner.put(key, data, if_none_match=if_none_match, if_match=if_match)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return self.inner.get(key, start=start, end=end)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self.inner.get_with_info(key)

    def head(self, key: str) -> ObjectInfo:
        self._check()
        return self.inner.head(key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, start_after=start_after)

    def delete(self, key: str) -> None:
        if self._dies() and self.takes_effect:
            self.inner.delete(key)
        self._check()
        self.inner.delete(key)

    def multipart(self, key: str) -> MultipartUpload:
        return self.inner.multipart(key)

    def abort_stale_uploads(self, prefix: str, *, older_than_s: float) -> int:
        return self.inner.abort_stale_uploads(prefix, older_than_s=older_than_s)

    def _dies(self) -> bool:
        """Whether this is the operation at which the process dies."""
        self.left -= 1
        return self.left == -1

    def _check(self) -> None:
        if self.left < 0:
            raise StorageUnavailableError("the process died here", where=self.url)


class Kit:
    """What the tests of this folder do again and again."""

    def store(self) -> MemoryStore:
        """An empty run."""
        store = MemoryStore()
        ensure_format(store)
        return store

    def crashing(self, inner: ObjectStore, limit: int, *, takes_effect: bool = False) -> CrashingStore:
        return CrashingStore(inner, limit, takes_effect=takes_effect)

    def state(self, seed: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> State:
        """Master weights and moments of a small model."""
        random = np.random.default_rng(seed)
        return {
            (name, component): random.normal(0, 0.1, int(np.prod(shape))).astype(np.float32)
            for name, shape in shapes.items()
            for component in COMPONENTS
        }

    def specs(
        self, rank: int, world_size: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES, cuts: Sequence[float] = ()
    ) -> list[ShardSpec]:
        """What a rank owns: even shares, or cut at these fractions of each tensor."""
        edges = [0.0, *(cuts or [rank_ / world_size for rank_ in range(1, world_size)]), 1.0]
        specs = []
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            start, stop = round(edges[rank] * size), round(edges[rank + 1] * size)
            specs += [ShardSpec(name, component, shape, start, stop - start) for component in COMPONENTS]
        return specs

    def shards(self, state: State, specs: Sequence[ShardSpec]) -> list[Shard]:
        return [Shard(spec, state[spec.name, spec.component][spec.start : spec.stop]) for spec in specs]

    def meta(self, step: int, world_size: int) -> CheckpointMeta:
        return CheckpointMeta(
            step=step,
            applied=step,
            tokens=step * 2048,
            data_position=step * 16,
            world_size=world_size,
            threads=1,
            precision="bf16",
            config_digest="c" * 64,
            software={"torch": "2.13.0"},
            optimizer={"lr": 1e-3, "betas": [0.9, 0.95]},
            detector={"count": 3},
        )

    def parts(
        self,
        store: ObjectStore,
        state: State,
        ref: CheckpointRef,
        world_size: int,
        *,
        shapes: Mapping[str, tuple[int, ...]] = SHAPES,
        cuts: Sequence[float] = (),
        pack_bytes: int = 400,
        bases: Sequence[Keyframe | None] = (),
    ) -> list[RankPart]:
        return [
            write_part(
                store,
                generation=ref.generation,
                step=ref.step,
                rank=rank,
                world_size=world_size,
                shards=self.shards(state, self.specs(rank, world_size, shapes, cuts)),
                cancelled=lambda: False,
                pack_bytes=pack_bytes,
                base=bases[rank] if bases else None,
            )
            for rank in range(world_size)
        ]

    def save(
        self,
        store: ObjectStore,
        state: State,
        ref: CheckpointRef,
        world_size: int = 2,
        *,
        shapes: Mapping[str, tuple[int, ...]] = SHAPES,
        cuts: Sequence[float] = (),
        parent: CheckpointRef | None = None,
        bases: Sequence[Keyframe | None] = (),
    ) -> Manifest:
        """A whole checkpoint; with `bases`, as differences to what each rank wrote then."""
        parts = self.parts(store, state, ref, world_size, shapes=shapes, cuts=cuts, bases=bases)
        return commit(store, parts, self.meta(ref.step, world_size), parent=parent, time_s=1000.0 + ref.step)

    def keyframes(
        self,
        store: ObjectStore,
        state: State,
        ref: CheckpointRef,
        world_size: int = 2,
        *,
        shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    ) -> list[Keyframe]:
        """Save a whole checkpoint; gives what each rank keeps of it to build on."""
        parts = self.parts(store, state, ref, world_size, shapes=shapes)
        commit(store, parts, self.meta(ref.step, world_size), parent=None, time_s=1000.0 + ref.step)
        return [tiny_keyframe(part, self.shards(state, self.specs(part.rank, world_size, shapes))) for part in parts]

    def drift(self, state: State, seed: int, scale: float = 1e-3) -> State:
        """The state a few steps later: nearly the same weights, other moments."""
        random = np.random.default_rng(seed)
        return {
            (name, component): (
                values * (1 + random.normal(0, 1.0 if component == "exp_avg" else scale, values.size))
            ).astype(np.float32)
            for (name, component), values in state.items()
        }

    def restore(
        self,
        store: ObjectStore,
        ref: CheckpointRef,
        world_size: int = 2,
        *,
        shapes: Mapping[str, tuple[int, ...]] = SHAPES,
        cuts: Sequence[float] = (),
    ) -> State:
        """The state as `world_size` ranks read it, put together; their digests must add up to the root."""
        manifest = load_manifest(store, ref)
        pieces: dict[tuple[str, str], list[NDArray[np.float32]]] = {}
        root = Digest()
        for rank in range(world_size):
            for shard in read_shards(store, manifest, self.specs(rank, world_size, shapes, cuts), threads=1):
                values = shard.values.view(np.float32)
                pieces.setdefault((shard.spec.name, shard.spec.component), []).append(values)
                root += Digest.of(shard)
        assert root == manifest.root_digest
        return {key: np.concatenate(values) for key, values in pieces.items()}

    def same(self, left: State, right: State) -> bool:
        """Equal in every bit."""
        return left.keys() == right.keys() and all(
            np.array_equal(left[key].view(np.uint32), right[key].view(np.uint32)) for key in left
        )

    def generation(self, store: ObjectStore, number: int, parent: int | None = None, fork_step: int = 0) -> Generation:
        """Begin a generation."""
        made = Generation(number, parent, fork_step, "test", "here", 1.0)
        create_generation(store, made)
        return made


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()
