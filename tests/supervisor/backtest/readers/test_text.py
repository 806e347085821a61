"""Texts as they lie on disks."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.readers.text import ending, read_text, stem

TEXT = "loss \u00e9\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_encoding_is_found_by_its_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(TEXT.encode(encoding))
    assert read_text(path) == TEXT


def test_big_endian_is_found_too(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\xfe\xff" + TEXT.encode("utf-16-be"))
    assert read_text(path) == TEXT


def test_packed_files_are_unpacked_to_where_they_were_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    packed = gzip.compress(TEXT.encode())
    path.write_bytes(packed + packed)
    assert read_text(path) == TEXT + TEXT
    path.write_bytes(packed + packed[:-10])
    assert read_text(path).startswith(TEXT)
    path.write_bytes(packed[:10] + b"\xff" * 20)
    with pytest.raises(ConfigError, match="damaged"):
        read_text(path)


def test_a_character_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes("3.5\u00e9".encode()[:-1])
    assert read_text(path) == "3.5"


def test_what_is_no_text_is_refused_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\u00e9,1".encode("latin-1"))
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read_text(path)
    assert read_text(path, errors="replace") == "\ufffd,1"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(tmp_path / "gone")


@pytest.mark.parametrize("name", ["run.CSV", "run.csv.gz"])
def test_packing_is_no_part_of_a_name(name: str) -> None:
    assert (stem(Path(name)), ending(Path(name))) == ("run", ".csv")
