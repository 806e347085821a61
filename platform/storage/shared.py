"""A folder in a node's shared memory as an object store: fast, gone with the machine, and never larger than agreed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stormsail.platform.errors import StorageFullError
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.local_files import TemporaryFile, locked, make_folder, told_clearly
from stormsail.platform.storage.store import ObjectInfo

_PAGE_BYTES = 4096


class SharedStore(LocalStore):
    """An `ObjectStore` in shared memory that refuses what does not fit into its budget.

    Args:
        root: Absolute path; created by the first write.
        free_bytes: What is left of the budget now; asked before each write, under a lock in the root's parent.
        timeout_s: Limit of waiting for another writer.
    """

    def __init__(self, root: Path, *, free_bytes: Callable[[], int], timeout_s: float = 30.0) -> None:
        super().__init__(root, timeout_s=timeout_s)
        self._free_bytes = free_bytes

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Store an object whole; see `ObjectStore.put`.

        Raises:
            StorageFullError: The budget does not have the room.
        """
        with told_clearly(self.url):
            make_folder(self._root)
        with locked(self._root.parent, timeout_s=self._timeout_s):  # inside the root, publishing takes the same lock
            self._check_room(-(-memoryview(data).nbytes // _PAGE_BYTES) * _PAGE_BYTES)
            return super().put(key, data, if_none_match=if_none_match, if_match=if_match)

    def finish_upload(self, file: TemporaryFile, key: str, *, if_none_match: bool) -> ObjectInfo:
        """Publish an upload's file under its key, if the budget had room for it."""
        self._check_room(0)
        return super().finish_upload(file, key, if_none_match=if_none_match)

    def _check_room(self, wanted_bytes: int) -> None:
        free = self._free_bytes()
        if wanted_bytes > free:
            raise StorageFullError(
                f"The vault's budget has {free} bytes left, {wanted_bytes} are wanted",
                where=self.url,
                todo="Raise checkpoint.vault_gib.",
            )
