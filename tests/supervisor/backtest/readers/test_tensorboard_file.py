"""Event files, as TensorBoard's writers make them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.readers.tensorboard_file import crc32c, read_tensorboard


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def scalar(tag: str, step: int, value: float, form: str = "simple") -> bytes:
    body = varint(2 << 3 | 5) + struct.pack("<f", value)
    if form == "tensor":
        body = part(8, varint(1 << 3) + varint(1) + part(4, struct.pack("<f", value)))
    elif form == "double":
        body = part(8, varint(1 << 3) + varint(2) + part(6, struct.pack("<d", value)))
    summary = part(1, part(1, tag.encode()) + body)
    return varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + varint(2 << 3) + varint(step) + part(5, summary)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", crc32c(length)) + data + struct.pack("<I", crc32c(data))


VERSION = record(varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + part(3, b"brain.Event:2"))


def write(path: Path, *events: bytes) -> Path:
    path.write_bytes(VERSION + b"".join(record(event) for event in events))
    return path


def test_the_checksum_is_the_published_one() -> None:
    plain = (crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert ((plain << 15) | (plain >> 17)) & 0xFFFFFFFF == 0xE3069283


@pytest.mark.parametrize("form", ["simple", "tensor", "double"])
def test_scalars_are_matched_by_step(tmp_path: Path, form: str) -> None:
    path = write(
        tmp_path / "events.out.tfevents.1.host",
        scalar("train/loss", 100, 3.5, form),
        scalar("train/grad_norm", 100, 0.25, form),
        scalar("eval/loss", 100, 9.0, form),
        scalar("train/grad_norm", 300, 0.5, form),
        scalar("train/loss", 300, 3.25, form),
    )
    curve = read_tensorboard([path], Columns())
    assert [(point.step, point.loss, point.grad_norm) for point in curve.points] == [(100, 3.5, 0.25), (300, 3.25, 0.5)]


def test_files_of_one_run_are_one_curve_with_its_restart(tmp_path: Path) -> None:
    first = write(tmp_path / "events.out.tfevents.1", scalar("loss", 1, 3.0), scalar("loss", 2, 3.0))
    second = write(tmp_path / "events.out.tfevents.2", scalar("loss", 1, 4.0))
    assert [point.step for point in read_tensorboard([first, second], Columns()).points] == [1, 2, 1]


def test_a_file_that_was_cut_off_is_read_to_there(tmp_path: Path) -> None:
    path = write(tmp_path / "events.out.tfevents.1", scalar("loss", 1, 3.0), scalar("loss", 2, 3.0))
    path.write_bytes(path.read_bytes()[:-5])
    curve = read_tensorboard([path], Columns())
    assert len(curve.points) == 1
    assert any("middle of a record" in note for note in curve.notes)


@pytest.mark.parametrize("at", [9, -6], ids=["length", "data"])
def test_a_flipped_bit_is_found(tmp_path: Path, at: int) -> None:
    path = write(tmp_path / "events.out.tfevents.1", scalar("loss", 1, 3.0))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="checksum"):
        read_tensorboard([path], Columns())


@pytest.mark.parametrize("event", [b"\xff" * 12, b"\x2a\x7f", b"\x03"], ids=["endless", "beyond", "form"])
def test_a_record_that_is_no_event_is_an_error(tmp_path: Path, event: bytes) -> None:
    with pytest.raises(ConfigError, match="no event"):
        read_tensorboard([write(tmp_path / "events.out.tfevents.1", event)], Columns())


def test_what_other_writers_make_can_be_read(tmp_path: Path) -> None:
    """tensorboardX comes with Ray."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(5):
            writer.add_scalar("loss", 3.0 - step / 4, step)
    (path,) = tmp_path.glob("*tfevents*")
    assert [point.loss for point in read_tensorboard([path], Columns()).points] == [3.0, 2.75, 2.5, 2.25, 2.0]


def test_of_several_files_a_damaged_one_is_read_to_its_damage(tmp_path: Path) -> None:
    first = write(tmp_path / "events.out.tfevents.1", scalar("loss", 1, 3.0), scalar("loss", 2, 3.0))
    first.write_bytes(first.read_bytes()[:-1] + b"\0")
    second = write(tmp_path / "events.out.tfevents.2", scalar("loss", 3, 3.0))
    curve = read_tensorboard([first, second], Columns())
    assert [point.step for point in curve.points] == [1, 3]
    assert any("up to its damage" in note for note in curve.notes)
