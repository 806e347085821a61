"""The text of a log as it lies on a disk: packed or not, in the encodings that shells write, cut off or not."""

from __future__ import annotations

import codecs
import zlib
from pathlib import Path

from stormsail.platform.errors import ConfigError

_GZIP = b"\x1f\x8b"
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The whole file: unpacked if it begins as gzip does, UTF-16 if it says so (PowerShell's `>` does), else UTF-8.

    A character or a packed block that was cut off at the end is left out.

    Args:
        path: The file.
        errors: What happens to bytes that are no text, as `bytes.decode` takes it.

    Raises:
        ConfigError: It cannot be read or unpacked, is no text, or holds nothing but blanks.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    if data.startswith(_GZIP):
        data = _unpacked(data, path)
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8-sig")
    try:
        text = codecs.getincrementaldecoder(encoding)(errors).decode(data)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"this is no text in UTF-8: {error.reason} at byte {error.start}", where=str(path), todo="save it as UTF-8"
        ) from None
    if not text.strip():
        raise is_empty(path)
    return text


def is_empty(path: Path) -> ConfigError:
    """The error of a file of any kind that holds nothing."""
    return ConfigError("the file is empty", where=str(path), todo="the job that wrote it may not have begun")


def ending(path: Path) -> str:
    """The ending that says what is in a file, in small letters: ".csv" for "run.csv" and for "run.csv.gz"."""
    bare = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return bare.suffix.lower()


def stem(path: Path) -> str:
    """A file's name without its ending: "run" for "run.csv" and for "run.csv.gz"."""
    return path.with_suffix("").stem if path.suffix.lower() == ".gz" else path.stem


def _unpacked(data: bytes, path: Path) -> bytes:
    """All that can be unpacked; several packed parts behind each other are one text."""
    parts = []
    while data.startswith(_GZIP):
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            parts.append(unpacker.decompress(data))
        except zlib.error as error:
            raise ConfigError(f"the file is damaged: {error}", where=str(path)) from None
        data = unpacker.unused_data
    return b"".join(parts)
