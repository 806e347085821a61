"""What nobody may need goes, noted first; what a repair, a person or a reader may need stays, whatever clocks say."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.jumping_clock import jumping
from tests.support.run_kit import KEEP_LITTLE, LIMIT_S, Staff, data_of, log_steps, small_config

from stormsail.platform.checkpoint.leases import LEASE_S, ReadLease
from stormsail.platform.checkpoint.pins import pin
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import FencedError, StorageUnavailableError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef


@pytest.fixture
def config() -> RunConfig:
    return small_config(checkpoint=KEEP_LITTLE)


def test_a_save_that_fails_deletes_nothing(staff: Staff) -> None:
    """Only the one that is published makes room, even where a single one is kept."""
    for step in range(1, 12):
        staff.checkpoint(step, good=True)
    before = staff.steps_on_store
    for step in range(12, 16):
        staff.keeper.missed(1, step, "no space left")
    assert staff.steps_on_store == before


def test_what_nobody_may_need_is_noted_as_deleted_and_then_deleted(staff: Staff) -> None:
    for step in range(1, 25):
        staff.checkpoint(step, good=True)
    kept = staff.steps_on_store
    assert set(kept) < set(range(1, 25))
    assert [commit.ref.step for commit in staff.ledger.record.commits] == kept
    assert CheckpointRef(1, 2) in staff.ledger.record.deleted


def test_what_a_repair_may_go_back_to_is_kept(staff: Staff) -> None:
    for step in range(1, 25):
        staff.checkpoint(step, good=True)
    kept = staff.steps_on_store
    head = staff.config.rollback.min_steps
    assert any(24 - 2 * head <= step <= 24 - head for step in kept)
    assert 24 in kept


def test_after_a_rollback_the_run_is_as_young_as_where_it_goes_on(staff: Staff) -> None:
    """Else what lies far behind the steps that were thrown away would count as far enough behind the head."""
    staff.steps(0, 29)
    for step in (2, 14):
        staff.checkpoint(step, good=True)
    staff.checkpoint(29)
    staff.ledger.note("generation.created", generation=2, parent=1, fork_step=14, reason="rollback", owner="test")
    staff.committer.advance(2)
    for step in (15, 16, 17):
        staff.checkpoint(step, good=True)
    assert 2 in staff.steps_on_store


def test_a_store_that_cannot_delete_now_costs_nothing_but_a_note(staff: Staff) -> None:
    staff.store = broken = staff.store
    assert isinstance(broken, FragileStore)
    staff.checkpoint(1)
    manifest = staff.published[0]
    broken.down = StorageUnavailableError("Nobody answers", where="here")
    staff.keeper.committed(manifest)
    broken.come_back()
    staff.ledger.flush(LIMIT_S)
    assert data_of(Journal.read(staff.store), "checkpoint.retention_failed")["why"]


def test_a_supervisor_that_was_replaced_deletes_nothing(tmp_path: Path) -> None:
    """It does not know the other's generations, and takes what the other needs for a past that is over."""
    store = FragileStore()
    old = Staff(store, tmp_path / "old", small_config(checkpoint=KEEP_LITTLE), writer="old")
    old.begin()
    for step in (1, 2):
        old.checkpoint(step, good=True)
    old.ledger.flush(LIMIT_S)
    late = old.published[-1]
    new = Staff(store, tmp_path / "new", small_config(checkpoint=KEEP_LITTLE), writer="new")
    for _ in range(2):
        new.decider.start()
    for step in range(3, 8):
        new.checkpoint(step, good=True)
    before = new.steps_on_store
    with contextlib.suppress(FencedError):
        old.keeper.committed(late)
    assert new.steps_on_store == before
    for made in (old, new):
        made.close()


def test_nothing_is_deleted_before_the_journal_on_the_store_says_so(staff: Staff) -> None:
    store = staff.store
    assert isinstance(store, FragileStore)
    for step in range(1, 12):
        staff.checkpoint(step, good=True)
    before = staff.steps_on_store
    store.refused = "journal/"
    staff.checkpoint(12, good=True)
    assert staff.steps_on_store == [*before, 12]
    store.refused = None
    staff.checkpoint(13, good=True)
    assert len(staff.steps_on_store) <= len(before)


def test_what_a_repair_is_loading_is_never_deleted(staff: Staff) -> None:
    first = staff.checkpoint(1, good=True)
    staff.ledger.loading = first
    for step in range(2, 260, 40):
        staff.checkpoint(step, good=True)
    assert first.step in staff.steps_on_store


def test_what_is_known_to_be_damaged_is_not_one_of_the_newest_good_ones(staff: Staff) -> None:
    for step in range(1, 13):
        staff.checkpoint(step, good=True)
        if step in (11, 12):
            staff.ledger.note("checkpoint.corrupt", step=step, generation=1, why="a bit")
    staff.checkpoint(13)
    assert {9, 10} <= set(staff.steps_on_store)


def test_what_people_pinned_and_what_somebody_reads_stays(staff: Staff) -> None:
    for step in range(1, 4):
        staff.checkpoint(step, good=True)
    pin(staff.store, CheckpointRef(1, 1), owner="me", time_s=1.0)
    with ReadLease(staff.store, [CheckpointRef(1, 2)]):
        for step in range(4, 30):
            staff.checkpoint(step, good=True)
        assert {1, 2} < set(staff.steps_on_store)
    staff.checkpoint(30, good=True)
    assert 1 in staff.steps_on_store
    assert 2 not in staff.steps_on_store


def test_a_pin_that_comes_after_the_plan_still_holds(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = staff.ledger.secure

    def pinned_meanwhile() -> None:
        secure()
        pin(staff.store, CheckpointRef(1, 1), owner="me", time_s=1.0)

    monkeypatch.setattr(staff.ledger, "secure", pinned_meanwhile)
    for step in range(1, 25):
        staff.checkpoint(step, good=True)
    assert 1 in staff.steps_on_store


def test_no_jump_of_a_clock_deletes_what_is_read_or_may_be_needed(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = jumping(staff.keeper, monkeypatch)
    for step in range(1, 4):
        staff.checkpoint(step, good=True)
    with ReadLease(staff.store, [CheckpointRef(1, 2)], clock=lambda: now_s[0]) as lease:
        for step in range(4, 30):
            staff.checkpoint(step, good=True)
            now_s[0] += LEASE_S / 4
            lease.renew()
            staff.keeper.sweep(time.time())
            assert {2, step - 1, step} <= set(staff.steps_on_store)
            assert [verify(staff.store, candidate.ref) for candidate in staff.ledger.candidates()[-2:]] == [[], []]
    staff.checkpoint(30, good=True)
    assert 2 not in staff.steps_on_store


class TestGradientLog:
    @pytest.fixture
    def config(self) -> RunConfig:
        return small_config(checkpoint={**KEEP_LITTLE, "gradient_log": "store"})

    def test_the_log_is_kept_from_the_newest_checkpoint_but_one_on(self, staff: Staff) -> None:
        log_steps(staff.store, 1, 0, 12)
        for step in (4, 8):
            staff.checkpoint(step)
        assert logged_steps(staff) == list(range(4, 12))
        staff.checkpoint(11)
        assert logged_steps(staff) == [8, 9, 10, 11]

    def test_what_a_repair_is_replaying_stays(self, staff: Staff) -> None:
        log_steps(staff.store, 1, 0, 12)
        first = staff.checkpoint(2)
        staff.checkpoint(4)
        staff.ledger.loading = first
        for step in (8, 11):
            staff.checkpoint(step)
        assert logged_steps(staff) == list(range(2, 12))

    def test_nothing_is_deleted_while_the_journal_cannot_be_written(self, staff: Staff) -> None:
        log_steps(staff.store, 1, 0, 12)
        staff.checkpoint(4)
        assert isinstance(staff.store, FragileStore)
        staff.store.refused = "journal/"
        staff.checkpoint(8)
        assert logged_steps(staff) == list(range(12))


def logged_steps(staff: Staff) -> list[int]:
    return sorted({int(info.key.split("/")[2]) for info in staff.store.list("log/")})


def test_the_best_evaluated_one_stays_until_another_is_better(tmp_path: Path) -> None:
    config = small_config(checkpoint={**KEEP_LITTLE, "keep_best": True}, eval={"every_steps": 1})
    staff = Staff(FragileStore(), tmp_path, config)
    staff.begin()
    losses = {2: 3.0, 3: 1.5, 4: 2.0, 18: 1.5, 20: 1.0}
    kept = {}
    for step in range(1, 25):
        staff.checkpoint(step, good=True, eval_loss=losses.get(step))
        kept[step] = staff.steps_on_store
    staff.close()
    assert all(3 in kept[step] for step in range(3, 20))
    assert 3 not in kept[24]
    assert 20 in kept[24]
