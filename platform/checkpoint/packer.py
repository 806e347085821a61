"""Cutting shards into frames, frames into packs, and putting each pack as soon as it is full."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS, cut
from stormsail.platform.checkpoint.codec import encode_pieces
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.keys import pack_key
from stormsail.platform.checkpoint.manifest import FrameEntry, PackEntry, TensorEntry
from stormsail.platform.checkpoint.scales import Grid
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import CheckpointError, FencedError, InternalError, PreconditionFailedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectInfo, ObjectStore


class SaveAbandonedError(CheckpointError):
    """The save was given up (deadline, or a new generation); what it wrote is never offered."""


class Packer:
    """One rank's packs of one checkpoint (or, with None for a rank, those of a fold), in the making.

    Attributes:
        packs: Packs that are on the store.
        frames: All frames so far.
        digest: State digest of all elements so far.
        nonfinite: NaN or infinite values so far.
        differences: Frames so far that build on the keyframe.
    """

    def __init__(
        self,
        store: ObjectStore,
        ref: CheckpointRef,
        rank: int | None,
        pack_bytes: int,
        cancelled: Callable[[], bool],
        *,
        base: Keyframe | None = None,
    ) -> None:
        self._store = store
        self._ref = ref
        self._rank = rank
        self._pack_bytes = pack_bytes
        self._cancelled = cancelled
        self._base = base
        self._buffer = bytearray()
        self._specs: dict[str, ShardSpec] = {}
        self._components: dict[str, set[str]] = {}
        self._places: dict[str, int] = {}
        self.packs: list[PackEntry] = []
        self.frames: list[FrameEntry] = []
        self.digest = Digest()
        self.nonfinite = 0
        self.differences = 0

    @property
    def tensors(self) -> tuple[TensorEntry, ...]:
        """All tensors seen, in the order that frames count them."""
        return tuple(
            TensorEntry(name, spec.shape, tuple(sorted(self._components[name]))) for name, spec in self._specs.items()
        )

    def add(self, shard: Shard) -> None:
        """Encode a shard; may put a pack."""
        place = self._register(shard.spec)
        for piece in cut(shard):
            self._check_cancelled()
            self.nonfinite += piece.nonfinite
            self._add_frame(place, piece)
            if len(self._buffer) >= self._pack_bytes:
                self._flush()

    def close(self) -> None:
        """Put the last pack."""
        if self._buffer:
            self._flush()
        self._check_cancelled()

    def _register(self, spec: ShardSpec) -> int:
        known = self._specs.setdefault(spec.name, spec)
        if known.shape != spec.shape:
            raise InternalError(f"two shapes for one tensor: {known.shape} and {spec.shape}", where=spec.name)
        self._components.setdefault(spec.name, set()).add(spec.component)
        return self._places.setdefault(spec.name, len(self._places))

    def _add_frame(self, place: int, piece: Shard) -> None:
        offset = len(self._buffer)
        hashed = xxhash.xxh3_128()
        base = self._base.find(piece) if self._base is not None else None
        for stored in encode_pieces(piece.words, base=base, grid=grid_of(piece.spec)):
            hashed.update(stored)
            self._buffer += stored
        digest = Digest.of(piece)
        entry = FrameEntry(
            pack=len(self.packs),
            offset=offset,
            length=len(self._buffer) - offset,
            xxh3=hashed.hexdigest(),
            tensor=place,
            component=piece.spec.component,
            start=piece.spec.start,
            count=piece.spec.count,
            digest=digest.hex,
            base=base.digest.hex() if base is not None else None,
        )
        self.differences += base is not None
        self.frames.append(entry)
        self.digest += digest

    def _flush(self) -> None:
        self._check_cancelled()
        key = pack_key(self._ref, self._rank, len(self.packs))
        info = put_once(self._store, key, self._buffer)
        self.packs.append(PackEntry(key, len(self._buffer), info.etag))
        self._buffer = bytearray()

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise SaveAbandonedError(
                "the save was given up before it was whole",
                where=pack_key(self._ref, self._rank, len(self.packs)),
            )


def grid_of(spec: ShardSpec) -> Grid | None:
    """How the elements lie in the rows of their tensor, along its first dimension; None for what is no matrix."""
    if len(spec.shape) < 2 or not spec.count:  # noqa: PLR2004 - rows and columns
        return None
    columns = spec.size // spec.shape[0]
    return Grid(columns, spec.start % columns) if columns <= CHUNK_ELEMENTS else None


def put_once(store: ObjectStore, key: str, data: bytes | bytearray) -> ObjectInfo:
    """Put an immutable object; the very same bytes there already are as good.

    Raises:
        FencedError: Other bytes are there.
        StorageError: The store failed.
    """
    try:
        return store.put(key, memoryview(data), if_none_match=True)
    except PreconditionFailedError as error:
        found, info = store.get_with_info(key)
        if found == data:
            return info
        raise FencedError(
            "somebody else wrote other bytes under this key",
            where=key,
            todo="two processes write as the same rank of the same generation; this one must stop",
        ) from error
