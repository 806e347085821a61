"""What people keep stays; a pin that comes too late says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.supervisor.conftest import Play
from tests.support.run_kit import Staff

from stormsail.platform.checkpoint.leases import LeaseWatch
from stormsail.platform.checkpoint.pins import pins
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.supervisor.shelf_keep import compact_checkpoint, pin_checkpoint

REF = CheckpointRef(1, 10)


def test_a_pin_is_new_once(past: RunPlace) -> None:
    store = past.store()
    assert pin_checkpoint(store, REF)
    assert not pin_checkpoint(store, REF)
    assert pins(store) == {REF}


def test_a_checkpoint_that_is_not_there_is_not_pinned(past: RunPlace) -> None:
    store = past.store()
    with pytest.raises(CheckpointError, match="no checkpoint of step 11"):
        pin_checkpoint(store, CheckpointRef(1, 11))
    assert pins(store) == frozenset()


def test_a_checkpoint_that_retention_is_deleting_is_not_pinned(played: Callable[[Play], RunPlace]) -> None:
    def deleting(staff: Staff) -> None:
        staff.checkpoint(10)
        staff.ledger.note("checkpoint.deleted", refs=[[1, 10]])

    store = played(deleting).store()
    with pytest.raises(CheckpointError, match="retention is deleting"):
        pin_checkpoint(store, REF)
    assert pins(store) == frozenset()


def test_a_keyframe_needs_no_compaction_and_no_lease_is_left(past: RunPlace) -> None:
    store = past.store()
    assert compact_checkpoint(store, REF) is None
    assert LeaseWatch().held(store) == frozenset()
