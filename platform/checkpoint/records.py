"""Records on the store: canonical JSON with its own SHA-256 in front, so that any changed byte shows.

    {"sha256":"<64 hex digits>","body":<canonical JSON>}

The hash is that of the body's bytes exactly as they stand. Canonical means: keys sorted, no spaces, UTF-8, no NaN.
Long records are kept packed: one zstd frame around canonical JSON, with the 32 bytes of its SHA-256 in front where no
other record holds them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import zstandard
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from stormsail.platform.errors import CheckpointError, InternalError

Model = TypeVar("Model")
Value = TypeVar("Value")

RECORD_CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True)

MAX_PACKED_BYTES = 1 << 30

_HEAD = b'{"sha256":"'
_MIDDLE = b'","body":'
_TAIL = b"}\n"
_BODY_AT = len(_HEAD) + 64 + len(_MIDDLE)


class Record(BaseModel):
    """Base of what is kept as JSON: frozen, unknown keys refused, no conversions."""

    model_config = RECORD_CONFIG


def canonical(value: object) -> bytes:
    """The one JSON form of a record (a `Record` or a dataclass).

    Raises:
        InternalError: The value holds something that JSON cannot keep exactly, such as NaN.
    """
    kind: type[Any] = type(value)
    plain = _adapter(kind).dump_python(value, mode="json")
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (ValueError, TypeError) as error:
        raise InternalError(
            f"a {type(value).__name__} cannot be kept as JSON: {error}",
            todo="keep plain finite numbers, strings, lists and maps in it",
        ) from error


def parse(body: bytes, model: type[Model], key: str) -> Model:
    """Read canonical JSON strictly.

    Raises:
        CheckpointError: It is not a valid `model`.
    """
    kind: type[Any] = model
    try:
        found: Model = _adapter(kind).validate_json(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise CheckpointError(
            f"this is not a valid {model.__name__}: {path}: {first['msg']}",
            where=key,
            todo="it is damaged, or a newer version of Stormsail wrote it",
            objects=(key,),
        ) from error
    return found


def seal(value: object) -> bytes:
    """The bytes of a record as they go to the store."""
    body = canonical(value)
    return b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _MIDDLE, body, _TAIL))


def unseal(data: bytes, model: type[Model], key: str) -> Model:
    """Read `seal`'s bytes back.

    Raises:
        CheckpointError: Any byte is not what was written, or the record is no valid `model`.
    """
    body = data[_BODY_AT : -len(_TAIL)]
    found = hashlib.sha256(body).hexdigest()
    expected = data[len(_HEAD) : len(_HEAD) + 64].decode("ascii", "replace")
    whole = b"".join((_HEAD, found.encode(), _MIDDLE, body, _TAIL))
    if whole != data:
        raise CheckpointError(
            f"the record is damaged: SHA-256 is {found}, expected {expected!r}", where=key, objects=(key,)
        )
    return parse(body, model, key)


def read_twice(read: Callable[[], Value]) -> Value:
    """Read something from a store, and once more if it came damaged: a bit can turn on its way, and lie right there.

    Raises:
        CheckpointError: It came damaged both times.
        StorageError: The store failed.
    """
    try:
        return read()
    except CheckpointError:
        return read()


def pack(value: object) -> bytes:
    """A record's canonical JSON in one zstd frame."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(canonical(value))


def unpack(data: bytes, model: type[Model], key: str) -> Model:
    """Read `pack`'s bytes back; at most 1 GiB of JSON is believed.

    Raises:
        CheckpointError: They are not whole, or the record is no valid `model`.
    """
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if not 0 < size <= MAX_PACKED_BYTES:
            raise CheckpointError(f"a record of {size} bytes is not believable", where=key, objects=(key,))
        body = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CheckpointError(f"the record cannot be decompressed: {error}", where=key, objects=(key,)) from error
    return parse(body, model, key)


def seal_packed(value: object) -> bytes:
    """The bytes of a long record as they go to the store."""
    body = pack(value)
    return hashlib.sha256(body).digest() + body


def unseal_packed(data: bytes, model: type[Model], key: str) -> Model:
    """Read `seal_packed`'s bytes back.

    Raises:
        CheckpointError: Any byte is not what was written, or the record is no valid `model`.
    """
    expected, body = data[:32], data[32:]
    found = hashlib.sha256(body).digest()
    if found != expected:
        raise CheckpointError(
            f"the record is damaged: SHA-256 is {found.hex()}, expected {expected.hex()}", where=key, objects=(key,)
        )
    return unpack(body, model, key)


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    """Building one takes milliseconds, so each is built once; two threads may build the same, which harms nothing."""
    found = _ADAPTERS.get(model)
    if found is None:
        found = _ADAPTERS[model] = TypeAdapter(model)
    return found
