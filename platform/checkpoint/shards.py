"""A shard: some elements of one tensor, named so that any number of workers can put them together again."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stormsail.platform.errors import InternalError

Words: TypeAlias = NDArray[np.uint32]
Floats: TypeAlias = NDArray[np.float32]

COMPONENT_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,63}$"
NAME_PATTERN = r"^[^\x00-\x1f\x7f]{1,512}$"

_COMPONENT = re.compile(COMPONENT_PATTERN)
_NAME = re.compile(NAME_PATTERN)

if sys.byteorder != "little":  # the bytes on the store are little-endian, and views of the words assume it
    raise InternalError("checkpoints need a little-endian machine", todo="run on x86-64 or arm64")


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """Which elements of which tensor.

    Attributes:
        name: The tensor, by its parameter name.
        component: What of it: usually `master`, `exp_avg` or `exp_avg_sq`.
        shape: The global shape, whatever the world size; `()` is a scalar.
        start: First flat element (row-major order of the global tensor).
        count: How many elements follow; 0 says that this worker owns none but knows the tensor.

    Raises:
        InternalError: A name that cannot be kept, a negative size, or elements that the tensor does not have.
    """

    name: str
    component: str
    shape: tuple[int, ...]
    start: int
    count: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InternalError(f"a tensor cannot be called {self.name!r}", todo="use 1 to 512 printable characters")
        if not _COMPONENT.fullmatch(self.component):
            raise InternalError(
                f"a component cannot be called {self.component!r}", where=self.name, todo=f"match {COMPONENT_PATTERN}"
            )
        if any(dim < 0 for dim in self.shape):
            raise InternalError(f"negative dimension in {self.shape}", where=self.label)
        if self.start < 0 or self.count < 0 or self.stop > self.size:
            raise InternalError(
                f"elements {self.start} to {self.stop} are not inside the tensor's {self.size}", where=self.label
            )

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + self.count

    @property
    def size(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def label(self) -> str:
        """The name for people: `tensor/component`."""
        return f"{self.name}/{self.component}"


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The elements themselves; the array is shared, not copied.

    Attributes:
        spec: Which elements.
        values: One-dimensional, contiguous, `spec.count` long; float32, or uint32 for bits that are no float.

    Raises:
        InternalError: The array is not of that form.
    """

    spec: ShardSpec
    values: Floats | Words

    def __post_init__(self) -> None:
        values = self.values
        if values.dtype not in (np.dtype(np.float32), np.dtype(np.uint32)):
            raise InternalError(f"values are {values.dtype}, expected float32 or uint32", where=self.spec.label)
        if values.ndim != 1 or not values.flags.c_contiguous:
            raise InternalError("values must be one-dimensional and contiguous", where=self.spec.label)
        if values.size != self.spec.count:
            raise InternalError(f"{values.size} values for {self.spec.count} elements", where=self.spec.label)

    @property
    def words(self) -> Words:
        """The same memory as 32-bit words."""
        return self.values.view(np.uint32)

    @property
    def nonfinite(self) -> int:
        """How many values are NaN or infinite; 0 for bits that are no float."""
        if self.values.dtype != np.dtype(np.float32):
            return 0
        return self.values.size - int(np.count_nonzero(np.isfinite(self.values)))
