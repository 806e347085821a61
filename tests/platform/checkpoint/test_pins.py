"""Pins hold until they are taken away, whatever else happens to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stormsail.platform.checkpoint.keys import pin_key
from stormsail.platform.checkpoint.pins import pin, pins, unpin
from stormsail.platform.errors import StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo

REF = CheckpointRef(2, 300)


def test_what_is_pinned_stays_pinned_until_it_is_unpinned() -> None:
    store = MemoryStore()
    assert pin(store, REF, owner="me", time_s=1.0)
    assert not pin(store, REF, owner="you", time_s=2.0)
    assert pins(store) == {REF}
    assert unpin(store, REF)
    assert not unpin(store, REF)
    assert pins(store) == frozenset()


def test_a_damaged_pin_still_holds() -> None:
    store = MemoryStore()
    pin(store, REF, owner="me", time_s=1.0)
    store.put(pin_key(REF), b"damaged")
    assert pins(store) == {REF}


def test_a_store_that_fails_is_not_one_without_pins() -> None:
    class Unlistable(MemoryStore):
        def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
            raise StorageUnavailableError(f"{prefix} after {start_after}")

    with pytest.raises(StorageUnavailableError):
        pins(Unlistable())
