"""What a journal event is, and how it is written: one value, one sealed line of JSON, one key.

(pure)
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field

from stormsail.platform import exact_json
from stormsail.platform.errors import StorageError
from stormsail.platform.exact_json import Json
from stormsail.platform.sealed_line import seal_line, unseal_line

PREFIX = "journal/"

_DIGITS = 8
_KEY = re.compile(rf"{PREFIX}(\d{{{_DIGITS}}})\.json")
_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int,),
    "time_s": (int, float),
    "kind": (str,),
    "generation": (int,),
    "step": (int, type(None)),
    "attempt": (int, type(None)),
    "data": (dict,),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened or was decided.

    Attributes:
        number: Place in the journal, from 1 and without holes.
        time_s: Seconds since the epoch by the writer's clock.
        kind: What it is, in dotted words: `run.started`, `ladder.decided`.
        generation: The generation in force.
        step: The step that it concerns, or None.
        attempt: The attempt that it concerns, or None.
        data: What else there is to know, as JSON values (lists, not tuples).
    """

    number: int
    time_s: float
    kind: str
    generation: int
    step: int | None = None
    attempt: int | None = None
    data: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An event as it is stored.

    Attributes:
        event: The event.
        writer: Who wrote it.
        body: The stored bytes, as they were written: a sealed line without its end.
    """

    event: Event
    writer: str
    body: bytes


def make_entry(event: Event, writer: str) -> Entry:
    """The event as stored, and as it will be read back. Raises `InternalError` if its data is no JSON."""
    body = seal_line(exact_json.dumps({**asdict(event), "writer": writer}))
    return read_entry(body, where=event_key(event.number))


def read_entry(body: bytes, *, where: str) -> Entry:
    """Read what `make_entry` made; one turned bit is turned back.

    Raises:
        StorageError: These bytes are no event.
    """
    try:
        whole = unseal_line(body)
        event, writer = _fields(exact_json.loads(whole))
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(where, str(error)) from error
    if not isinstance(writer, str) or not _types_hold(event):
        raise _damaged(where, "a field has another type")
    return Entry(event, writer, seal_line(whole))


def event_key(number: int) -> str:
    """The key of the event with this number."""
    return f"{PREFIX}{number:0{_DIGITS}d}.json"


def event_number(key: str) -> int | None:
    """The number of the event under this key, or None if it is no event's."""
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else None


def _fields(held: Json) -> tuple[Event, Json]:
    if not isinstance(held, dict):
        raise TypeError("not an object")
    writer = held.pop("writer")
    return Event(**held), writer  # type: ignore[arg-type] # the types are checked next


def _types_hold(event: Event) -> bool:
    return all(type(getattr(event, name)) in types for name, types in _TYPES.items())


def _damaged(where: str, why: str) -> StorageError:
    return StorageError(f"This is not a journal event: {why}", where=where)
