"""Real text that every machine has: the sources of the running Python's own standard library, as bytes."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stormsail.platform.config.builtin_args import PythonStdlibArgs
from stormsail.platform.data.tokens import SPEC_FILE, DataSpec, TokenDataset, write_shards
from stormsail.platform.errors import ConfigError

BYTE_VOCABULARY = 256
_SHARD_TOKENS = 4_194_304
_SEPARATOR = b"\0"  # no source file contains it
_EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})


def stdlib_name(args: PythonStdlibArgs) -> str:
    """A folder name for these sources on this machine; other contents get another name."""
    digest = hashlib.sha256(f"{_SHARD_TOKENS} {args.max_bytes}".encode())
    for path in _sources(_stdlib()):
        digest.update(path.relative_to(_stdlib()).as_posix().encode() + _SEPARATOR)
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"python-stdlib-{digest.hexdigest()[:16]}"


def python_stdlib(folder: Path, args: PythonStdlibArgs) -> DataSpec:
    """Write the standard library's `.py` sources as byte tokens, once; later calls only check the folder.

    The files come in the order of their relative paths, a zero byte after each. Tests, installed packages and
    the generated build settings are left out, since they differ from machine to machine.

    Raises:
        ConfigError: This Python has no sources on disk, or the folder is damaged or cannot be written.
    """
    if (folder / SPEC_FILE).exists():
        return TokenDataset.open(folder).spec
    return write_shards(
        folder,
        _limited(_texts(_stdlib()), args.max_bytes),
        vocab_size=BYTE_VOCABULARY,
        shard_tokens=_SHARD_TOKENS,
        source=f"standard library sources of Python {platform.python_version()}",
    )


def _stdlib() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _sources(root: Path) -> list[Path]:
    """All source files in the order of their relative paths, as text with `/`."""
    found = [path for path in root.rglob("*.py") if path.is_file() and _wanted(path.relative_to(root))]
    if not found:
        raise ConfigError(
            "this Python comes without the sources of its standard library",
            where=str(root),
            todo="Use another Python, or data of your own: data.factory: builtin:tokens",
        )
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _wanted(relative: Path) -> bool:
    folders = relative.parts[:-1]
    generated = relative.name.startswith("_sysconfigdata") or any(part.startswith("config-") for part in folders)
    return not generated and _EXCLUDED_FOLDERS.isdisjoint(folders)


def _texts(root: Path) -> Iterator[npt.NDArray[np.integer]]:
    for path in _sources(root):
        yield np.frombuffer(path.read_bytes() + _SEPARATOR, dtype=np.uint8)


def _limited(chunks: Iterator[npt.NDArray[np.integer]], limit: int | None) -> Iterator[npt.NDArray[np.integer]]:
    """Pass chunks on until `limit` tokens are through."""
    left = limit
    for chunk in chunks:
        if left is None:
            yield chunk
            continue
        yield chunk[:left]
        left -= min(left, len(chunk))
        if not left:
            return
