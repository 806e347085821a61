"""What a checkpoint consists of: the records that ranks, the committer and readers exchange, and how they are stored.

A `RankPart` says what one rank wrote, a `Manifest` what all ranks wrote together, a `Commit` that it counts. Their
bytes are untrusted when read: no pickle, strict types, unknown keys refused, sizes bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.keys import fold_manifest_key, manifest_key
from stormsail.platform.checkpoint.records import RECORD_CONFIG, Record, pack, unpack
from stormsail.platform.checkpoint.shards import COMPONENT_PATTERN, NAME_PATTERN
from stormsail.platform.messages import CheckpointRef

FORMAT: Final = 1

Natural: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Sha256Hex: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Xxh3Hex: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
DigestHex: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Component: TypeAlias = Annotated[str, Field(pattern=COMPONENT_PATTERN)]


def _is_none(value: object) -> bool:
    return value is None


def _is_false(value: object) -> bool:
    return value is False


# Left out of the stored form where there is none: what is whole in itself has the same bytes as ever.
OptionalDigest: TypeAlias = Annotated[DigestHex | None, Field(exclude_if=_is_none)]
OptionalRef: TypeAlias = Annotated[CheckpointRef | None, Field(exclude_if=_is_none)]
OptionalLoss: TypeAlias = Annotated[FiniteFloat | None, Field(exclude_if=_is_none)]
OptionalSet: TypeAlias = Annotated[str | None, Field(pattern=r"^[0-9a-f]{16}$", exclude_if=_is_none)]
FoldMark: TypeAlias = Annotated[bool, Field(exclude_if=_is_false)]
JsonMap: TypeAlias = dict[str, JsonValue]


class CheckpointMeta(Record):
    """What rolls back together with the weights, besides the weights.

    Attributes:
        step: Global batches consumed, which is the next step to run.
        applied: Optimizer updates, Adam's own step count.
        tokens: Real tokens trained on.
        data_position: Samples consumed, as an absolute position in the data order.
        world_size: Ranks that wrote it.
        threads: CPU threads per rank.
        precision: Precision of the engine.
        config_digest: Digest of the run's configuration.
        software: Versions and processor type, for the comparison at restore.
        optimizer: The optimizer's scalars.
        rng: States of the random generators, as plain JSON.
        detector: Baselines of the detectors.
        decided: A copy of what the journal had decided, so that the checkpoint can be read alone.
        losses_finite: Whether the last losses were all finite.
        eval_loss: Loss of this state on held-out samples, in nats; None if it was not evaluated, or is not finite.
        eval_set: Digest of which samples that is over; losses over others do not compare.
        extra: Anything else.
    """

    step: Natural
    applied: Natural
    tokens: Natural
    data_position: Natural
    world_size: Positive
    threads: Positive
    precision: str
    config_digest: str
    software: dict[str, str] = Field(default_factory=dict)
    optimizer: JsonMap = Field(default_factory=dict)
    rng: JsonMap = Field(default_factory=dict)
    detector: JsonMap = Field(default_factory=dict)
    decided: JsonMap = Field(default_factory=dict)
    losses_finite: bool = True
    eval_loss: OptionalLoss = None
    eval_set: OptionalSet = None
    extra: JsonMap = Field(default_factory=dict)


class FormatRecord(BaseModel):
    """How the run's checkpoints are written. Unknown keys are let through: a newer version may have added some."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    format: Positive
    chunk_elements: Positive
    codecs: dict[str, int]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its global shape, and which components of it are kept (sorted)."""

    __pydantic_config__: ClassVar[ConfigDict] = RECORD_CONFIG

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    shape: tuple[Natural, ...]
    components: tuple[Component, ...]


@dataclass(frozen=True, slots=True)
class PackEntry:
    """One pack object: frames back to back, nothing else."""

    __pydantic_config__: ClassVar[ConfigDict] = RECORD_CONFIG

    key: str
    size_bytes: Positive
    etag: str


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One frame: where it lies, what is in it, and how to know that it is right.

    Attributes:
        pack: Index into the packs of the record that it stands in.
        offset: First byte in the pack.
        length: Bytes.
        xxh3: XXH3-128 of the stored bytes, checked before decoding.
        tensor: Index into the tensors of the record that it stands in.
        component: Which component of the tensor.
        start: First flat element.
        count: Elements, all inside one chunk of the grid.
        digest: State digest of the decoded elements.
        base: State digest of the same elements in the keyframe, if this is a difference to it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = RECORD_CONFIG

    pack: Natural
    offset: Natural
    length: Positive
    xxh3: Xxh3Hex
    tensor: Natural
    component: Component
    start: Natural
    count: Annotated[int, Field(ge=1, le=CHUNK_ELEMENTS)]
    digest: DigestHex
    base: OptionalDigest = None

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + self.count

    @property
    def place(self) -> tuple[int, int]:
        """Pack and first byte, which no other frame of the record has."""
        return self.pack, self.offset


class RankPart(Record):
    """What one rank wrote for one checkpoint. Travels by pickle to the committer, and lies on the store as JSON.

    Attributes:
        tensors: Every tensor that the rank knows, even where it owns no element.
        nonfinite: NaN or infinite values among the rank's floats.
        digest: State digest of all that the rank wrote.
        base: The keyframe that some of the frames build on, or None.
    """

    format: Literal[1] = FORMAT
    generation: Natural
    step: Natural
    rank: Natural
    world_size: Positive
    tensors: tuple[TensorEntry, ...]
    packs: tuple[PackEntry, ...]
    frames: tuple[FrameEntry, ...]
    nonfinite: Natural
    digest: DigestHex
    base: OptionalRef = None

    @property
    def ref(self) -> CheckpointRef:
        """The checkpoint that this is a part of."""
        return CheckpointRef(self.generation, self.step)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the rank's packs."""
        return sum(pack.size_bytes for pack in self.packs)


class Manifest(Record):
    """All that is needed to read one checkpoint.

    Attributes:
        parent: The checkpoint that the writing generation had restored or written before, or None at the start.
        root: State digest over everything; the same at any world size.
        component_digests: The same per component; they add up to the root.
        nonfinite: NaN or infinite values in the state.
        base: The keyframe that some of the frames build on; None for a checkpoint that is whole in itself.
        folded: Whether this is a checkpoint with differences as it was written once more, whole in itself.
    """

    format: Literal[1] = FORMAT
    generation: Natural
    step: Natural
    parent: CheckpointRef | None
    meta: CheckpointMeta
    tensors: tuple[TensorEntry, ...]
    packs: tuple[PackEntry, ...]
    frames: tuple[FrameEntry, ...]
    nonfinite: Natural
    root: DigestHex
    component_digests: dict[Component, DigestHex]
    base: OptionalRef = None
    folded: FoldMark = False

    @property
    def ref(self) -> CheckpointRef:
        """Names this checkpoint."""
        return CheckpointRef(self.generation, self.step)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all packs."""
        return sum(pack.size_bytes for pack in self.packs)

    @property
    def key(self) -> str:
        """Where it lies."""
        return fold_manifest_key(self.ref) if self.folded else manifest_key(self.ref)

    @property
    def root_digest(self) -> Digest:
        """`root` as a value."""
        return Digest.from_hex(self.root)

    def check_complete(self) -> None:
        """Every element there exactly once, every pack byte accounted for, all digests adding up.

        Raises:
            CheckpointError: With the first thing that is wrong.
        """
        from stormsail.platform.checkpoint.completeness import check_complete

        check_complete(self)


class Commit(Record):
    """THE commit: small, last, conditional. What lists and retention need to know without the manifest.

    Attributes:
        manifest_sha256: Of the manifest's stored bytes.
        stored_bytes: Bytes of all packs.
        time_s: Seconds since the epoch by the committer's clock.
        base: The keyframe without which this checkpoint cannot be read, or None.
        eval_loss: As in its `CheckpointMeta`.
        eval_set: As in its `CheckpointMeta`.
    """

    format: Literal[1] = FORMAT
    generation: Natural
    step: Natural
    parent: CheckpointRef | None
    applied: Natural
    tokens: Natural
    world_size: Positive
    manifest_sha256: Sha256Hex
    root: DigestHex
    stored_bytes: Natural
    nonfinite: Natural
    losses_finite: bool
    time_s: float
    base: OptionalRef = None
    eval_loss: OptionalLoss = None
    eval_set: OptionalSet = None

    @property
    def ref(self) -> CheckpointRef:
        """Names the checkpoint."""
        return CheckpointRef(self.generation, self.step)

    @property
    def finite(self) -> bool:
        """Whether weights, moments and the last losses are all finite; others are never promoted to good."""
        return self.losses_finite and self.nonfinite == 0


class Fold(Record):
    """Says that a checkpoint with differences lies on the store once more, whole in itself; written last.

    Attributes:
        root: The same as in the commit.
        manifest_sha256: Of the stored bytes of the fold's manifest.
        stored_bytes: Bytes of its packs.
        time_s: Seconds since the epoch by the clock of who folded it.
    """

    format: Literal[1] = FORMAT
    generation: Natural
    step: Natural
    root: DigestHex
    manifest_sha256: Sha256Hex
    stored_bytes: Natural
    time_s: float

    @property
    def ref(self) -> CheckpointRef:
        """Names the checkpoint."""
        return CheckpointRef(self.generation, self.step)


def pack_manifest(manifest: Manifest) -> bytes:
    """The manifest's bytes for the store. Their SHA-256 stands in the commit."""
    return pack(manifest)


def unpack_manifest(data: bytes, key: str) -> Manifest:
    """Read `pack_manifest`'s bytes back.

    Raises:
        CheckpointError: Not a whole manifest.
    """
    return unpack(data, Manifest, key)
