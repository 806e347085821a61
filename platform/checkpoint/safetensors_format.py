"""Files in the safetensors format, written as a stream: the header first, then one tensor after another.

    header length u64 little-endian | JSON header, padded with spaces to a multiple of 8 | the tensors' bytes

The header names dtype, shape and place of every tensor, so all of it is known before the first byte of data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from stormsail.platform.errors import ConfigError, InternalError

DTYPE_BYTES = {"F32": 4, "BF16": 2}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of a file.

    Attributes:
        name: Its name.
        dtype: `F32` or `BF16`.
        shape: Its shape; `()` is a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished file.

    Attributes:
        name: File name.
        size_bytes: Its length.
        sha256: Of the whole file.
    """

    name: str
    size_bytes: int
    sha256: str


def split_files(plans: Iterable[TensorPlan], limit_bytes: int) -> list[list[TensorPlan]]:
    """Tensors in order, in as few files as the limit allows; one that is larger than the limit has a file to itself."""
    files: list[list[TensorPlan]] = []
    filled = 0
    for plan in plans:
        if not files or filled + plan.size_bytes > limit_bytes:
            files.append([])
            filled = 0
        files[-1].append(plan)
        filled += plan.size_bytes
    return files


def file_names(count: int) -> list[str]:
    """The names that Hugging Face libraries look for."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def index_of(files: Sequence[Sequence[TensorPlan]], names: Sequence[str]) -> bytes:
    """The index that several files need: which tensor lies in which, and their bytes in all."""
    weight_map = {plan.name: name for plans, name in zip(files, names, strict=True) for plan in plans}
    total = sum(plan.size_bytes for plans in files for plan in plans)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode()


def header_of(plans: Sequence[TensorPlan], metadata: dict[str, str]) -> bytes:
    """Length and JSON header of a file.

    Raises:
        InternalError: A name is there twice, or is the one that the format keeps for itself.
    """
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for plan in plans:
        if plan.name in header:
            raise InternalError(f"the tensor {plan.name} is there twice", where="safetensors header")
        end = offset + plan.size_bytes
        header[plan.name] = {"dtype": plan.dtype, "shape": list(plan.shape), "data_offsets": [offset, end]}
        offset = end
    body = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    body += b" " * (-len(body) % _ALIGNMENT)
    return len(body).to_bytes(8, "little") + body


class SafetensorsWriter:
    """Writes one file; it has its name only when it is whole and on the disk.

    Args:
        path: Where the file is to be. While it is written it is called `PATH.partial`.
        plans: All tensors, in the order in which they will come.
        metadata: Kept in the header.

    Raises:
        ConfigError: The file cannot be written there.
    """

    def __init__(self, path: Path, plans: Sequence[TensorPlan], metadata: dict[str, str]) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._left = list(reversed(plans))
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        try:
            self._file = self._partial.open("wb")
        except OSError as error:
            raise _cannot_write(self._partial, error) from error
        self._write(header_of(plans, metadata))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what is not finished."""
        with contextlib.suppress(OSError):  # on a full disk the last bytes fail again, and they go anyway
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def add(self, name: str, values: NDArray[np.float32] | NDArray[np.uint16]) -> None:
        """Append the next tensor: float32 for `F32`, the upper halves as uint16 for `BF16`.

        Raises:
            InternalError: It is not the next one, or has another size.
            ConfigError: The disk is full.
        """
        plan = self._left.pop() if self._left else None
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        if plan is None or plan.name != name or plan.size_bytes != len(data):
            raise InternalError(f"{name} with {len(data)} bytes is not the tensor that comes next: {plan}")
        self._write(data)

    def finish(self) -> WrittenFile:
        """Bring everything to the disk and give the file its name.

        Raises:
            InternalError: Tensors are missing.
            ConfigError: The disk is full.
        """
        if self._left:
            raise InternalError(f"{len(self._left)} tensors are missing", where=str(self._path))
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        except OSError as error:
            raise _cannot_write(self._path, error) from error
        return WrittenFile(self._path.name, self._size_bytes, self._sha256.hexdigest())

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise _cannot_write(self._partial, error) from error
        self._sha256.update(data)
        self._size_bytes += len(data)


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the file cannot be written: {error.strerror}", where=str(path), todo="choose another folder with --out"
    )
