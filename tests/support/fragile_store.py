"""A store in memory that goes away, comes back and loses answers as the test says."""

from __future__ import annotations

from collections.abc import Iterator

from stormsail.platform.errors import StorageError, StorageUnavailableError
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo


class FragileStore(MemoryStore):
    """Attributes: `down`: what each operation raises, or None; `lost_answers`: puts that succeed and raise;
    `failures`: how many operations still fail before it is well again; `refused`: puts below it fail, or None;
    `lost`: puts below it succeed and raise, or None."""

    def __init__(self) -> None:
        super().__init__("fragile")
        self.down: StorageError | None = None
        self.lost_answers = 0
        self.failures = 0
        self.refused: str | None = None
        self.lost: str | None = None
        self.puts = 0

    def go_down(self) -> None:
        self.down = StorageUnavailableError("Nobody answers")

    def come_back(self) -> None:
        self.down = None

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        self.puts += 1
        self._check()
        if self.refused is not None and key.startswith(self.refused):
            raise StorageUnavailableError("503 SlowDown", where=key)
        info = super().put(key, data, if_none_match=if_none_match, if_match=if_match)
        if self.lost is not None and key.startswith(self.lost):
            raise StorageUnavailableError("The answer was lost", where=key)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StorageUnavailableError("The answer was lost")
        return info

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._check()
        return super().get(key, start=start, end=end)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        self._check()
        return super().list(prefix, start_after=start_after)

    def _check(self) -> None:
        if self.down is not None:
            raise self.down
        if self.failures:
            self.failures -= 1
            raise StorageUnavailableError("Nobody answers yet")
