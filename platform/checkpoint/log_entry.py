"""What one rank logs of one step: its shard of the reduced gradient, and everything else that the update depended on.

    magic "SSGL" | version u8 | 3 zeros | header length u32 | SHA-256 of header and gradient | header | gradient

little-endian. The header is canonical JSON; the gradient is the blocks of `gradient_frame.py`, in the order of the
model's parameters. A step without an update has no gradient. (pure)
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from stormsail.platform import exact_json
from stormsail.platform.checkpoint.gradient_frame import Bits, Cut, decode_gradient, encode_gradient
from stormsail.platform.errors import CheckpointError

Outcome: TypeAlias = Literal["applied", "dropped", "skipped", "empty"]

MAGIC = b"SSGL"
VERSION = 1

_HEAD = struct.Struct("<4sB3xI32s")
_MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """The step without its gradient.

    Attributes:
        generation: That computed it.
        step: The global batch that was consumed.
        rank: Whose shard.
        world_size: Ranks that logged a shard each.
        layout: Digest of which elements of which parameters the shard holds, in order.
        outcome: Whether the update was applied, dropped (non-finite), skipped (suspect) or empty (no real token).
        elements: Gradient values of the shard that follow; 0 where nothing was applied.
        scale: What the gradient was multiplied with: clip factor and token correction.
        rates: The learning rate of each optimizer group.
        applied: Optimizer updates so far, this one included.
        tokens: Real tokens so far, this step's included.
        state_sum: Word sum of this rank's state after the step.
        seen: What the detectors were shown; rank 0 only.
        row: The step as it was reported; rank 0 only.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    generation: int
    step: int
    rank: int
    world_size: int
    layout: str
    outcome: Outcome
    elements: int
    scale: float
    rates: tuple[float, ...]
    applied: int
    tokens: int
    state_sum: int
    seen: dict[str, JsonValue] = field(default_factory=dict)
    row: dict[str, JsonValue] = field(default_factory=dict)


_HEADER = TypeAdapter(LoggedStep)


def pack_entry(step: LoggedStep, bits: Bits, cuts: Sequence[Cut] | None = None) -> bytes:
    """The entry as it is stored.

    Args:
        step: Its `elements` must be the number of `bits`.
        bits: The gradient shard.
        cuts: How it lies in the parameters, see `encode_gradient`.
    """
    header = exact_json.dumps(asdict(step))
    body: list[bytes | memoryview] = [header, *encode_gradient(bits, cuts)]
    hashed = hashlib.sha256()
    for piece in body:
        hashed.update(piece)
    return b"".join((_HEAD.pack(MAGIC, VERSION, len(header), hashed.digest()), *body))


def unpack_entry(data: bytes, key: str) -> tuple[LoggedStep, Bits]:
    """Read `pack_entry`'s bytes back.

    Args:
        data: The whole object.
        key: Its name, for the error.

    Raises:
        CheckpointError: Any byte is not what was written.
    """
    try:
        return _unpack(memoryview(data))
    except CheckpointError as error:
        raise CheckpointError(
            f"this entry of the gradient log cannot be used: {error.what}", where=key, objects=(key,)
        ) from error


def _unpack(data: memoryview) -> tuple[LoggedStep, Bits]:
    if len(data) < _HEAD.size:
        raise CheckpointError(f"{len(data)} bytes are no whole entry")
    magic, version, length, digest = _HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION) or length > min(_MAX_HEADER_BYTES, len(data) - _HEAD.size):
        raise CheckpointError("its beginning is not that of an entry that this version knows")
    if any(data[5:8]) or hashlib.sha256(data[_HEAD.size :]).digest() != digest:
        raise CheckpointError("its SHA-256 is not the one that it was written with")
    body = data[_HEAD.size :]
    try:
        step = _HEADER.validate_python(exact_json.loads(bytes(body[:length])))
    except (ValidationError, ValueError) as error:
        raise CheckpointError("its header is not one that this version knows") from error
    return step, decode_gradient(body[length:], step.elements)
