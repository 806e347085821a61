"""A store in memory that goes away at a chosen operation, for so many operations."""

from __future__ import annotations

from collections.abc import Iterator

from stormsail.platform.errors import StorageUnavailableError
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo


class FlakyStore(MemoryStore):
    """A store in memory that goes away at a chosen operation, for so many operations; then it works again.

    What is put while it is away may arrive all the same: only the answer is lost.
    """

    fail_at = -1
    away_for = 1
    arrives = False

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if self._is_away():
            if self.arrives:
                super().put(key, data, if_none_match=if_none_match, if_match=if_match)
            raise _slow_down(key)
        return super().put(key, data, if_none_match=if_none_match, if_match=if_match)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._check(key)
        return super().get(key, start=start, end=end)

    def head(self, key: str) -> ObjectInfo:
        self._check(key)
        return super().head(key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        self._check(prefix)
        return super().list(prefix, start_after=start_after)

    def delete(self, key: str) -> None:
        self._check(key)
        super().delete(key)

    def go_away(self, fail_at: int, *, away_for: int = 1, arrives: bool = False) -> None:
        """Fail from the operation `fail_at` (1: the next one) on."""
        self.fail_at, self.away_for, self.arrives = fail_at, away_for, arrives

    def come_back(self) -> None:
        """Work again."""
        self.fail_at = -1

    def _is_away(self) -> bool:
        if self.fail_at < 0:
            return False
        self.fail_at = max(0, self.fail_at - 1)
        if self.fail_at == 0:
            self.away_for -= 1
            if self.away_for <= 0:
                self.fail_at = -1
            return True
        return False

    def _check(self, key: str) -> None:
        if self._is_away():
            raise _slow_down(key)


def _slow_down(key: str) -> StorageUnavailableError:
    return StorageUnavailableError("503 SlowDown", where=key)
