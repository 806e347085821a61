"""Reads a curve from TensorBoard event files: a small reader of our own, with the checksums checked.

A file is a row of records: length, checksum of the length, data, checksum of the data. The data is an event in
protocol-buffer form, of which only the step and the scalar values are looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns, choose
from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.readers.table import finish
from stormsail.supervisor.backtest.readers.text import is_empty

Field = tuple[int, int, int, bytes]
"""Number, wire type, value of a number, bytes of anything else."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
_MASK = 0xA282EAD8


def read_tensorboard(paths: Sequence[Path], columns: Columns) -> Curve:
    """Read the event files of one run, oldest first; scalars are matched by step.

    Of several files a damaged one is read up to its damage, with a note.

    Raises:
        ConfigError: The only file is damaged, all are empty, or no scalar looks like a loss.
    """
    if not any(path.stat().st_size for path in paths):
        raise is_empty(paths[0])
    where = str(paths[0].parent if len(paths) > 1 else paths[0])
    scalars: list[tuple[str, int, float]] = []
    notes: tuple[str, ...] = ()
    for path in paths:
        try:
            for number, record in enumerate(_records(path), start=1):
                if record is None:
                    notes = (*notes, f"{path.name} ends in the middle of a record: the job was killed there")
                else:
                    scalars += _scalars(record, f"{path}, record {number}")
        except ConfigError as error:
            if len(paths) == 1:
                raise
            notes = (*notes, f"{path.name} is read up to its damage only: {error.what}")
    chosen = choose(list(dict.fromkeys(tag for tag, _, _ in scalars)), Columns(None, columns.loss, columns.norm), where)
    said = tuple(note for note in chosen.notes(columns) if "step column" not in note)
    return finish(Path(where), _joined(scalars, chosen.loss, chosen.norm), (*said, *notes))


def _joined(scalars: Sequence[tuple[str, int, float]], loss: str, norm: str | None) -> list[Point]:
    """One point for each loss, with the norm that was logged at its step nearest to it in the file."""
    points: list[Point] = []
    pending: tuple[int, float] | None = None
    for tag, step, value in scalars:
        if tag == loss:
            points.append(Point(step, value, pending[1] if pending and pending[0] == step else None))
            pending = None
        elif tag == norm and points and points[-1].step == step:
            points[-1] = Point(step, points[-1].loss, value)
        elif tag == norm:
            pending = (step, value)
    return points


def crc32c(data: bytes) -> int:
    """The masked CRC-32C that the format uses."""
    state = 0xFFFFFFFF
    for byte in data:
        state = _TABLE[(state ^ byte) & 0xFF] ^ (state >> 8)
    state ^= 0xFFFFFFFF
    return (((state >> 15) | (state << 17)) + _MASK) & 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        state = value
        for _ in range(8):
            state = (state >> 1) ^ (_POLYNOMIAL if state & 1 else 0)
        table.append(state)
    return tuple(table)


_TABLE = _table()


def _records(path: Path) -> Iterator[bytes | None]:
    """Each record's data; None at the end of a file that was cut off."""
    with path.open("rb") as file:
        while head := file.read(12):
            if len(head) < 12:  # noqa: PLR2004 - eight bytes of length, four of checksum
                yield None
                return
            length, check = struct.unpack("<QI", head)
            if crc32c(head[:8]) != check:
                raise ConfigError("the file is damaged, or no event file: a length fails its checksum", where=str(path))
            body = file.read(length + 4)
            if len(body) < length + 4:
                yield None
                return
            if crc32c(body[:length]) != struct.unpack("<I", body[length:])[0]:
                raise ConfigError("the file is damaged: a record fails its checksum", where=str(path))
            yield body[:length]


def _scalars(event: bytes, where: str) -> list[tuple[str, int, float]]:
    step, summary = 0, b""
    for number, wire, value, data in _fields(event, where):
        if (number, wire) == (2, _VARINT):
            step = value
        elif (number, wire) == (5, _BYTES):
            summary = data
    found = []
    for number, wire, _, data in _fields(summary, where):
        if (number, wire) == (1, _BYTES):
            tag, scalar = _value(data, where)
            if scalar is not None:
                found.append((tag, step, scalar))
    return found


def _value(data: bytes, where: str) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, wire, _, inner in _fields(data, where):
        if (number, wire) == (1, _BYTES):
            tag = inner.decode(errors="replace")
        elif (number, wire) == (2, _FIXED32):
            scalar = struct.unpack("<f", inner)[0]
        elif (number, wire) == (8, _BYTES):
            scalar = _tensor(inner, where)
    return tag, scalar


def _tensor(data: bytes, where: str) -> float | None:
    """A tensor with one float or double in it; None for anything else."""
    kind, content = 0, b""
    for number, wire, value, inner in _fields(data, where):
        if (number, wire) == (1, _VARINT):
            kind = value
        elif number in (4, 5, 6) and wire != _VARINT:  # raw content, floats, doubles
            content = inner
    form = {1: "<f", 2: "<d"}.get(kind)
    if form is None or len(content) != struct.calcsize(form):
        return None
    found: float = struct.unpack(form, content)[0]
    return found


def _fields(data: bytes, where: str) -> Iterator[Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at, where)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at, where)
            yield number, wire, value, b""
            continue
        if wire == _BYTES:
            size, at = _varint(data, at, where)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ConfigError("this is no event: it has a field of an unknown form", where=where)
        if at + size > len(data):
            raise ConfigError("this is no event: a field reaches beyond its end", where=where)
        yield number, wire, 0, data[at : at + size]
        at += size


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:  # noqa: PLR2004 - at most ten bytes
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the top bit says that more follows
            return value, at
    raise ConfigError("this is no event: a number does not end", where=where)
