"""Tries out a store before a run trusts it: writable, reads what was written, in parts too, honours conditions.

Some S3-like servers accept `If-None-Match` and `If-Match` and ignore them. Two supervisors would then
both believe that they own a run, so such a store is refused.
"""

from __future__ import annotations

import logging
import secrets

from stormsail.platform.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.storage.store import ObjectStore

PREFIX = "probe/"

_OTHER_STORE = (
    "Use a store that honours conditional puts (AWS S3, MinIO, SeaweedFS, a local or NFS folder, or `embedded`): "
    "without them two runs could overwrite each other."
)
_log = logging.getLogger("stormsail.storage")


def probe_store(store: ObjectStore) -> None:
    """Write, condition, read, list and delete one small object, which is gone afterwards.

    Raises:
        StorageDeniedError: The store ignores conditions or does not show what was written, or refuses access.
        StorageError: It cannot be used now.
    """
    key = f"{PREFIX}{secrets.token_hex(12)}"
    try:
        _try_out(store, key)
    except StorageUnavailableError:
        raise  # it would not answer a delete either
    except StorageError:
        _clean_up_after_failure(store, key)
        raise
    store.delete(key)
    _expect_gone(store, key)


def _try_out(store: ObjectStore, key: str) -> None:
    first = store.put(key, b"one", if_none_match=True)
    _expect_body(store, key, b"one")
    _expect_refusal(store, key, header="If-None-Match", if_match=None)
    second = store.put(key, b"three", if_match=first.etag)
    if second.etag == first.etag:
        raise StorageDeniedError(
            "The store gives two versions of an object one ETag", where=store.url, todo=_OTHER_STORE
        )
    _expect_refusal(store, key, header="If-Match", if_match=first.etag)
    _expect_body(store, key, b"three")
    if store.get(key, start=1, end=4) != b"hre":
        raise StorageDeniedError("The store gives another part than was asked for", where=store.url, todo=_OTHER_STORE)
    if [info.key for info in store.list(key)] != [key]:
        raise StorageDeniedError("The store does not list what was just written", where=store.url, todo=_OTHER_STORE)


def _expect_refusal(store: ObjectStore, key: str, *, header: str, if_match: str | None) -> None:
    try:
        store.put(key, b"never", if_none_match=if_match is None, if_match=if_match)
    except PreconditionFailedError:
        return
    raise StorageDeniedError(
        f"The store ignores {header}: a put that had to be refused was accepted", where=store.url, todo=_OTHER_STORE
    )


def _expect_body(store: ObjectStore, key: str, body: bytes) -> None:
    if store.get(key) != body:
        raise StorageDeniedError(
            "The store does not give back what was just written", where=store.url, todo=_OTHER_STORE
        )


def _expect_gone(store: ObjectStore, key: str) -> None:
    try:
        store.head(key)
    except ObjectMissingError:
        return
    raise StorageDeniedError(
        "The store still shows an object that was just deleted", where=store.url, todo=_OTHER_STORE
    )


def _clean_up_after_failure(store: ObjectStore, key: str) -> None:
    try:
        store.delete(key)
    except StorageError as error:
        _log.warning("storage.probe_left where=%s/%s why=%r", store.url, key, error.what)
