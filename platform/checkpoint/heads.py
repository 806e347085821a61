"""Asking a store about many objects at once: whether each is there, how long it is, and its etag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stormsail.platform.errors import ObjectMissingError
from stormsail.platform.storage.store import ObjectInfo, ObjectStore

_THREADS = 8


def _go_on() -> None:
    """Nobody asks to stop."""


def heads(store: ObjectStore, keys: Sequence[str], go_on: Callable[[], None] = _go_on) -> list[ObjectInfo | None]:
    """What the store says about each object, in the order of the keys; None for one that is missing.

    One HEAD each, several at a time; blocks, and runs in any thread.

    Args:
        store: Where they lie.
        keys: Which objects.
        go_on: Called before each request, from any thread; what it raises ends the whole.

    Raises:
        StorageError: The store failed.
    """
    if len(keys) < _THREADS:  # a pool would cost more than it saves
        return [_head(store, key, go_on) for key in keys]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="heads") as pool:
        return list(pool.map(lambda key: _head(store, key, go_on), keys))


def _head(store: ObjectStore, key: str, go_on: Callable[[], None]) -> ObjectInfo | None:
    go_on()
    try:
        return store.head(key)
    except ObjectMissingError:
        return None
