"""The last keyframe as this rank wrote it, kept in memory so that the next saves can be differences to it."""

from __future__ import annotations

from collections.abc import Iterable

from stormsail.platform.checkpoint.codec import Base
from stormsail.platform.checkpoint.commits import load_commit
from stormsail.platform.checkpoint.delta import Worth, is_worth, takes_delta
from stormsail.platform.checkpoint.digest import word_sum
from stormsail.platform.checkpoint.heads import heads
from stormsail.platform.checkpoint.keys import manifest_key
from stormsail.platform.checkpoint.manifest import PackEntry, RankPart
from stormsail.platform.checkpoint.shards import Shard
from stormsail.platform.errors import CheckpointError, InternalError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectInfo, ObjectStore


class Keyframe:
    """Words and digests of one rank's share of a keyframe; holds 8 bytes for each parameter that the rank owns.

    Args:
        part: What the rank wrote; all of it whole in itself.
        shards: The very shards that it wrote. They are kept, not copied, and must not change any more.
        worth: Says of newer words and these whether their difference is worth writing.

    Raises:
        InternalError: The part has differences in it.
    """

    def __init__(self, part: RankPart, shards: Iterable[Shard], *, worth: Worth = is_worth) -> None:
        if part.base is not None:
            raise InternalError(f"step {part.step} is no keyframe: it builds on step {part.base.step}")
        self._part = part
        self._worth = worth
        self._shards = {
            (shard.spec.name, shard.spec.component): shard for shard in shards if takes_delta(shard.spec.component)
        }
        self._sums = {key: word_sum(shard.values) for key, shard in self._shards.items()}
        self._digests = {
            (part.tensors[frame.tensor].name, frame.component, frame.start, frame.count): bytes.fromhex(frame.digest)
            for frame in part.frames
        }

    @property
    def ref(self) -> CheckpointRef:
        """The keyframe's name."""
        return self._part.ref

    @property
    def world_size(self) -> int:
        """Ranks that wrote it."""
        return self._part.world_size

    @property
    def stored_bytes(self) -> int:
        """Bytes of this rank's share on the store."""
        return self._part.stored_bytes

    def find(self, newer: Shard) -> Base | None:
        """What a difference of these elements builds on; None where there is nothing, or where none is worth it."""
        spec = newer.spec
        shard = self._shards.get((spec.name, spec.component))
        digest = self._digests.get((spec.name, spec.component, spec.start, spec.count))
        if shard is None or digest is None:
            return None
        offset = spec.start - shard.spec.start
        words = shard.words[offset : offset + spec.count]
        return Base(words, digest) if self._worth(newer.words, words) else None

    def problem(self, store: ObjectStore) -> str:
        """Why nothing can be built on it ("" if something can): looks at the memory, the commit, and each pack.

        One small read and one HEAD per pack, several at a time; runs in any thread.

        Raises:
            StorageError: The store failed.
        """
        changed = [shard.spec.label for key, shard in self._shards.items() if word_sum(shard.values) != self._sums[key]]
        if changed:
            return f"its copy in memory has changed ({changed[0]})"
        try:
            if load_commit(store, self.ref).base is not None:
                return "it was committed as a difference"
        except CheckpointError as error:
            return error.what
        return self._pack_problem(store)

    def _pack_problem(self, store: ObjectStore) -> str:
        manifest, *packs = heads(store, [manifest_key(self.ref), *(pack.key for pack in self._part.packs)])
        if manifest is None:
            return f"{manifest_key(self.ref)} is missing"
        problems = (_changed(pack, found) for pack, found in zip(self._part.packs, packs, strict=True))
        return next(filter(None, problems), "")


def _changed(pack: PackEntry, found: ObjectInfo | None) -> str:
    if found is None:
        return f"{pack.key} is missing"
    if (found.size_bytes, found.etag) == (pack.size_bytes, pack.etag):
        return ""
    return f"{pack.key} is not what was written ({found.size_bytes} bytes, expected {pack.size_bytes})"
