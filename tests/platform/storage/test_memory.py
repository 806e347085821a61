"""What only the store in memory does; the rest is in `test_store.py`."""

from __future__ import annotations

import pickle

import pytest

from stormsail.platform.errors import InternalError
from stormsail.platform.storage.memory import MemoryStore


def test_a_store_in_memory_refuses_to_travel() -> None:
    with pytest.raises(InternalError, match="another process"):
        pickle.dumps(MemoryStore())


def test_its_clock_dates_objects_and_uploads() -> None:
    now = 100.0
    store = MemoryStore(clock=lambda: now)
    assert store.put("k", b"").modified_s == 100.0
    store.multipart("u")
    now = 160.0
    assert store.abort_stale_uploads("", older_than_s=61.0) == 0
    assert store.abort_stale_uploads("", older_than_s=59.0) == 1


def test_its_name_is_in_its_url() -> None:
    assert MemoryStore("probe").url == "memory://probe"
