"""A user's data source, checked sample by sample: a wrong shape must not train on silently."""

from __future__ import annotations

from typing import cast

import numpy as np

from stormsail.platform.config.training import DataSection
from stormsail.platform.data.source import DataSource
from stormsail.platform.data.tokens import Sample
from stormsail.platform.errors import UserCodeError
from stormsail.workers.usercode import call_user

_SAMPLE_PARTS = (("tokens", "iu"), ("targets", "iu"), ("mask", "fbiu"))
_KIND_NAMES = {"iu": "integers", "fbiu": "numbers"}


class CheckedSource:
    """A user's data source whose every sample is checked on its way in.

    Args:
        source: The user's.
        section: Its section; every sample has `sequence_tokens` tokens.
        where: Where the user's factory is defined.
        name: What errors call it; "": the factory.
    """

    def __init__(self, source: DataSource, section: DataSection, *, where: str, name: str = "") -> None:
        self._source = source
        self._section = section
        self._sequence_tokens = section.sequence_tokens
        self._where = where
        self._name = name or section.factory

    @property
    def digest(self) -> str:
        """See `DataSource`."""
        digest: object = call_user(f"{self._name}: digest", lambda: self._source.digest)
        if not isinstance(digest, str) or not digest:
            raise self._wrong(f"digest is {digest!r}, expected text that changes whenever the samples do")
        return digest

    def samples(self) -> int:
        """See `DataSource`."""
        count: object = call_user(f"{self._name}: samples()", self._source.samples)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise self._wrong(f"samples() returned {count!r}, expected a whole number from 1 on")
        return count

    def sample(self, index: int, /) -> Sample:
        """See `DataSource`; raises `UserCodeError` for a sample of another form."""
        found: object = call_user(f"{self._name}: sample({index})", self._source.sample, index)
        if not isinstance(found, tuple | list) or len(found) != len(_SAMPLE_PARTS):
            raise self._wrong(f"sample({index}) returned {describe(found)}, expected (tokens, targets, mask)")
        arrays = [np.asarray(part) for part in found]
        for (name, kinds), array in zip(_SAMPLE_PARTS, arrays, strict=True):
            if array.shape != (self._sequence_tokens,) or array.dtype.kind not in kinds:
                raise self._wrong(
                    f"sample({index}): {name} is {describe(array)}, expected {_KIND_NAMES[kinds]} of shape "
                    f"[{self._sequence_tokens}] (data.sequence_tokens)"
                )
        tokens, targets, mask = arrays
        if not np.isin(mask, (0, 1)).all():
            raise self._wrong(f"sample({index}): the mask holds other values than 0 and 1")
        return tokens.astype(np.int64), targets.astype(np.int64), mask.astype(np.float32)

    def held_out(self) -> CheckedSource | None:
        """See `HoldsOut`; None also where the source has no such method."""
        ask: object = call_user(f"{self._name}: held_out", lambda: getattr(self._source, "held_out", None))
        if ask is None:
            return None
        if not callable(ask):
            raise self._wrong(f"held_out is {describe(ask)}, expected a method")
        found: object = call_user(f"{self._name}: held_out()", ask)
        if found is None:
            return None
        missing = call_user(f"{self._name}: held_out()", missing_members, found)
        if missing:
            raise self._wrong(
                f"held_out() returned {describe(found)}, expected a data source with samples(), sample(index) and digest "
                f"(missing: {', '.join(missing)})"
            )
        held_out = CheckedSource(
            cast("DataSource", found), self._section, where=self._where, name=f"{self._name}: held_out()"
        )
        if held_out.digest == self.digest:
            raise self._wrong(
                f"held_out() returned a data source with the digest of what is trained on, {self.digest!r}; samples that are not "
                "trained on have another"
            )
        return held_out

    def check_once(self) -> None:
        """Try everything on the first sample, and that asking twice gives the same."""
        _ = self.digest
        self.samples()
        first, again = self.sample(0), self.sample(0)
        if not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(first, again, strict=True)):
            raise self._wrong("sample(0) differs between two calls; a sample must be a pure function of its index")

    def _wrong(self, problem: str) -> UserCodeError:
        return UserCodeError(f"{self._name}: {problem}", where=self._where, todo="Correct data.factory.")


def missing_members(source: object) -> list[str]:
    """What of a `DataSource` an object does not have."""
    return [name for name in ("samples", "sample", "digest") if not hasattr(source, name)]


def describe(found: object) -> str:
    """A value's type, and its shape if it has one."""
    name = type(found).__name__
    shape = getattr(found, "shape", None)
    return f"{name} of shape {list(shape)} and type {getattr(found, 'dtype', '?')}" if shape is not None else name
