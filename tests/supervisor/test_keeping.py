"""Checkpoints from the run's side: noted, promoted, and deleted only when nobody may need them."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import (
    LIMIT_S,
    Staff,
    checkpoint_meta,
    data_of,
    kinds,
    log_steps,
    small_config,
    tiny_shards,
    written_part,
)

from stormsail.platform.checkpoint import folding as fold_module
from stormsail.platform.checkpoint.commits import load_manifest, scan_commits
from stormsail.platform.checkpoint.folding import fold
from stormsail.platform.checkpoint.keys import fold_key, manifest_key, owner_of
from stormsail.platform.checkpoint.leases import LEASE_S, LeaseWatch, ReadLease
from stormsail.platform.checkpoint.pins import pin, unpin
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.errors import CheckpointError, FencedError, StorageUnavailableError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef, FaultKind, Incident
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.compacting import FoldResult, fold_held

QUICK = {
    "every_steps": 1,
    "good_after_steps": 1,
    "keep_last": 1,
    "max_missed": 2,
    "deadline_s": LIMIT_S,
}


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    made = Staff(FragileStore(), tmp_path, small_config(checkpoint=QUICK))
    made.begin()
    yield made
    made.close()


def journal(staff: Staff) -> list[str]:
    return kinds(Journal.read(staff.store))


def steps_on_store(staff: Staff) -> list[int]:
    return [commit.step for commit in scan_commits(staff.store).commits]


def test_a_commit_is_noted_with_what_the_report_needs(staff: Staff) -> None:
    staff.checkpoint(1)
    noted = data_of(Journal.read(staff.store), "checkpoint.committed")
    assert noted["generation"] == 1
    assert noted["finite"] is True
    assert noted["digest"] == staff.published[0].manifest.root
    assert noted["bytes"] > 0


def test_misses_in_a_row_raise_one_alert(staff: Staff) -> None:
    for step in (1, 2, 3):
        staff.keeper.missed(1, step, "slow")
    assert journal(staff).count("checkpoint.missed") == 3
    assert journal(staff).count("checkpoint.alert") == 1
    assert data_of(Journal.read(staff.store), "checkpoint.alert")["missed"] == 2


def test_a_save_that_all_ranks_miss_is_one_miss(staff: Staff) -> None:
    for _ in range(3):
        staff.keeper.missed(1, 10, "the store was away")
    assert "checkpoint.alert" not in journal(staff)
    staff.keeper.missed(1, 20, "the store was away")
    assert data_of(Journal.read(staff.store), "checkpoint.alert")["missed"] == 2


def test_a_save_that_fails_deletes_nothing(staff: Staff) -> None:
    """Only the one that is published makes room, even where a single one is kept."""
    for step in range(1, 12):
        staff.checkpoint(step, good=True)
    before = steps_on_store(staff)
    for step in range(12, 16):
        staff.keeper.missed(1, step, "no space left")
    assert steps_on_store(staff) == before


def test_a_commit_ends_the_row_of_misses(staff: Staff) -> None:
    staff.keeper.missed(1, 1, "slow")
    staff.checkpoint(2)
    staff.keeper.missed(1, 3, "slow")
    assert "checkpoint.alert" not in journal(staff)


def test_nothing_is_promoted_inside_a_numeric_episode(staff: Staff) -> None:
    staff.steps(0, 5)
    staff.checkpoint(3)
    staff.hearing.incident(Incident(1, 5, 5, FaultKind.SPIKE, 9.0))
    staff.keeper.promote(30)
    assert staff.ledger.record.good == frozenset()


def test_what_nobody_may_need_is_noted_as_deleted_and_then_deleted(staff: Staff) -> None:
    for step in range(1, 25):
        staff.checkpoint(step, good=True)
    kept = steps_on_store(staff)
    assert set(kept) < set(range(1, 25))
    assert [commit.ref.step for commit in staff.ledger.record.commits] == kept
    assert CheckpointRef(1, 2) in staff.ledger.record.deleted


def test_what_a_repair_may_go_back_to_is_kept(staff: Staff) -> None:
    for step in range(1, 25):
        staff.checkpoint(step, good=True)
    kept = steps_on_store(staff)
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
    assert 2 in steps_on_store(staff)


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


def test_the_sweep_removes_what_dead_saves_left_behind_and_no_checkpoint(staff: Staff) -> None:
    staff.checkpoint(1)
    written_part(staff.store, CheckpointRef(1, 2), 0)
    objects = len(list(staff.store.list()))
    staff.ledger.note(
        "generation.created", generation=2, parent=1, fork_step=1, reason="another supervisor", owner="test"
    )
    staff.keeper.sweep(4e9)
    assert len(list(staff.store.list("packs/"))) == 1
    assert len(list(staff.store.list())) < objects + 2
    assert steps_on_store(staff) == [1]
    assert data_of(Journal.read(staff.store), "checkpoint.swept")["objects"] >= 1


def test_the_sweep_removes_what_was_half_written(tmp_path: Path) -> None:
    made = Staff(LocalStore(tmp_path / "store"), tmp_path / "local", small_config())
    made.begin()
    made.checkpoint(1)
    torn = next((tmp_path / "store").rglob("parts/*/*")) / "~part-0123456789abcdef-00000"
    torn.write_bytes(b"half")
    os.utime(torn, (1e9, 1e9))
    made.keeper.sweep(time.time())
    assert not torn.exists()
    assert data_of(made.ledger.look((0, 0)).events, "checkpoint.swept")["uploads"] == 1
    made.close()


def test_a_supervisor_that_was_replaced_deletes_nothing(tmp_path: Path) -> None:
    """It does not know the other's generations, and takes what the other needs for a past that is over."""
    store = FragileStore()
    old = Staff(store, tmp_path / "old", small_config(checkpoint=QUICK), writer="old")
    old.begin()
    for step in (1, 2):
        old.checkpoint(step, good=True)
    old.ledger.flush(LIMIT_S)
    late = old.published[-1]
    new = Staff(store, tmp_path / "new", small_config(checkpoint=QUICK), writer="new")
    for _ in range(2):
        new.decider.start()
    for step in range(3, 8):
        new.checkpoint(step, good=True)
    before = steps_on_store(new)
    with contextlib.suppress(FencedError):
        old.keeper.committed(late)
    assert steps_on_store(new) == before
    for made in (old, new):
        made.close()


def test_nothing_is_deleted_before_the_journal_on_the_store_says_so(staff: Staff) -> None:
    store = staff.store
    assert isinstance(store, FragileStore)
    for step in range(1, 12):
        staff.checkpoint(step, good=True)
    before = steps_on_store(staff)
    store.refused = "journal/"
    staff.checkpoint(12, good=True)
    assert steps_on_store(staff) == [*before, 12]
    store.refused = None
    staff.checkpoint(13, good=True)
    assert len(steps_on_store(staff)) <= len(before)


def test_what_given_up_saves_wrote_is_removed_in_time_and_what_goes_on_is_not(tmp_path: Path) -> None:
    """Without a look at any clock of the wall, as that of the store may be another."""
    staff = Staff(FragileStore(), tmp_path, small_config(checkpoint=QUICK))
    now = [0.0]
    staff.keeper._clock = lambda: now[0]
    staff.begin()
    written_part(staff.store, CheckpointRef(1, 5), 0)
    staff.keeper.missed(1, 5, "the other rank was late")
    staff.checkpoint(6)
    assert len(list(staff.store.list("packs/"))) == 2
    now[0] = 3 * LIMIT_S
    written_part(staff.store, CheckpointRef(1, 8), 0)  # is being written
    staff.checkpoint(7)
    left = {owner_of(info.key) for info in staff.store.list("packs/")}
    assert left == {CheckpointRef(1, step) for step in (6, 7, 8)}
    assert journal(staff).count("checkpoint.swept") == 1
    staff.close()


def test_a_commit_whose_answer_was_lost_counts_when_a_repair_asks(staff: Staff) -> None:
    """The committer heard an error and gave the save up, but the store had taken it."""
    store = staff.store
    assert isinstance(store, FragileStore)
    staff.checkpoint(1)
    store.lost = "commits/"
    staff.checkpoint(2)
    store.lost = None
    assert "checkpoint.missed" in journal(staff)
    assert [candidate.ref.step for candidate in staff.ledger.candidates()] == [1]
    staff.keeper.recheck()
    assert [candidate.ref.step for candidate in staff.ledger.candidates()] == [1, 2]


def test_a_store_that_is_away_when_a_repair_asks_costs_nothing(staff: Staff) -> None:
    store = staff.store
    assert isinstance(store, FragileStore)
    staff.checkpoint(1)
    staff.keeper.missed(1, 2, "away")
    store.go_down()
    staff.keeper.recheck()
    assert [candidate.ref.step for candidate in staff.ledger.candidates()] == [1]


def test_a_sweep_that_finds_nothing_says_nothing(staff: Staff) -> None:
    staff.keeper.sweep(4e9)
    assert "checkpoint.swept" not in journal(staff)


def test_a_commit_that_nobody_came_to_note_is_taken_up(staff: Staff) -> None:
    """Its supervisor died between the commit and the note."""
    ref = CheckpointRef(1, 4)
    commit(staff.store, [written_part(staff.store, ref, 0, seed=4)], checkpoint_meta(4), parent=None, time_s=1.0)
    assert staff.ledger.candidates() == []
    staff.keeper.adopt()
    assert [candidate.ref for candidate in staff.ledger.candidates()] == [ref]
    staff.keeper.adopt()
    assert journal(staff).count("checkpoint.committed") == 1


def test_what_a_repair_is_loading_is_never_deleted(staff: Staff) -> None:
    first = staff.checkpoint(1, good=True)
    staff.ledger.loading = first
    for step in range(2, 260, 40):
        staff.checkpoint(step, good=True)
    assert first.step in steps_on_store(staff)


class TestGradientLog:
    @pytest.fixture
    def staff(self, tmp_path: Path) -> Iterator[Staff]:
        made = Staff(FragileStore(), tmp_path, small_config(checkpoint={**QUICK, "gradient_log": "store"}))
        made.begin()
        yield made
        made.close()

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


def test_what_people_pinned_and_what_somebody_reads_stays(staff: Staff) -> None:
    for step in range(1, 4):
        staff.checkpoint(step, good=True)
    pin(staff.store, CheckpointRef(1, 1), owner="me", time_s=1.0)
    with ReadLease(staff.store, [CheckpointRef(1, 2)]):
        for step in range(4, 30):
            staff.checkpoint(step, good=True)
        assert {1, 2} < set(steps_on_store(staff))
    staff.checkpoint(30, good=True)
    assert 1 in steps_on_store(staff)
    assert 2 not in steps_on_store(staff)


def jumping(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """From now on the wall's clock says another hour at each look; gives the steady one, which the test moves."""
    hours = itertools.cycle([0.0, 50.0, -30.0, 9000.0, -9000.0])
    wall, now_s = time.time(), [0.0]
    monkeypatch.setattr(time, "time", lambda: wall + 3600.0 * next(hours))
    staff.keeper._clock = lambda: now_s[0]
    staff.keeper._leases = LeaseWatch(clock=lambda: now_s[0])
    return now_s


def test_no_jump_of_a_clock_deletes_what_is_read_or_may_be_needed(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = jumping(staff, monkeypatch)
    for step in range(1, 4):
        staff.checkpoint(step, good=True)
    with ReadLease(staff.store, [CheckpointRef(1, 2)], clock=lambda: now_s[0]) as lease:
        for step in range(4, 30):
            staff.checkpoint(step, good=True)
            now_s[0] += LEASE_S / 4
            lease.renew()
            staff.keeper.sweep(time.time())
            assert {2, step - 1, step} <= set(steps_on_store(staff))
            assert [verify(staff.store, candidate.ref) for candidate in staff.ledger.candidates()[-2:]] == [[], []]
    staff.checkpoint(30, good=True)
    assert 2 not in steps_on_store(staff)


def test_a_save_that_a_jumping_clock_swept_is_refused_and_never_committed_in_part(staff: Staff) -> None:
    staff.checkpoint(1)
    part = written_part(staff.store, CheckpointRef(1, 2), 0)
    staff.keeper.sweep(time.time() + 1e6)
    with pytest.raises(CheckpointError, match="missing"):
        commit(staff.store, [part], checkpoint_meta(2), parent=None, time_s=1.0)
    assert steps_on_store(staff) == [1]


def test_a_pin_that_comes_after_the_plan_still_holds(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = staff.ledger.secure

    def pinned_meanwhile() -> None:
        secure()
        pin(staff.store, CheckpointRef(1, 1), owner="me", time_s=1.0)

    monkeypatch.setattr(staff.ledger, "secure", pinned_meanwhile)
    for step in range(1, 25):
        staff.checkpoint(step, good=True)
    assert 1 in steps_on_store(staff)


class Here:
    """Folds at once, in the caller's thread."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.done: FoldResult | None = None
        self.begun: list[CheckpointRef] = []
        self.why = ""

    @property
    def busy(self) -> bool:
        return self.done is not None

    def start(self, ref: CheckpointRef) -> None:
        self.begun.append(ref)
        if not self.why:
            fold(self.store, ref, time_s=1.0)
        self.done = FoldResult(ref, why=self.why)

    def poll(self) -> FoldResult | None:
        done, self.done = self.done, None
        return done


@pytest.fixture
def compactor() -> Here:
    return Here(FragileStore())


@pytest.fixture
def folding(tmp_path: Path, compactor: Here) -> Iterator[Staff]:
    """A supervisor that folds, with a keyframe at 1, a pinned difference to it at 2, and another keyframe at 3."""
    made = Staff(compactor.store, tmp_path, small_config(checkpoint=QUICK), compactor=compactor)
    made.begin()
    base = made.keyframe(1)
    made.checkpoint(2, good=True, base=base)
    pin(made.store, CheckpointRef(1, 2), owner="me", time_s=1.0)
    assert compactor.begun == []
    made.keyframe(3)
    yield made
    made.close()


def test_what_is_kept_for_long_is_folded_and_its_keyframe_goes(
    folding: Staff, compactor: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = jumping(folding, monkeypatch)
    assert compactor.begun == [CheckpointRef(1, 2)]
    for step in range(4, 25):
        folding.checkpoint(step, good=True)
    assert compactor.begun == [CheckpointRef(1, 2)]
    assert journal(folding).count("checkpoint.folded") == 1
    assert 1 in steps_on_store(folding)
    assert CheckpointRef(1, 1) not in folding.ledger.record.deleted
    assert verify(folding.store, CheckpointRef(1, 2)) == []
    manifests = {info.key for info in folding.store.list("manifests/")}
    assert manifest_key(CheckpointRef(1, 2)) in manifests
    now_s[0] += 3 * LIMIT_S
    folding.checkpoint(25, good=True)
    assert manifest_key(CheckpointRef(1, 2)) not in {info.key for info in folding.store.list("manifests/")}
    assert 1 in steps_on_store(folding)
    folding.checkpoint(26, good=True)
    assert 1 not in steps_on_store(folding)
    assert verify(folding.store, CheckpointRef(1, 2)) == []


def test_a_damaged_fold_frees_no_keyframe_and_holds_up_nothing_else(
    folding: Staff, compactor: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = jumping(folding, monkeypatch)
    damaged = bytearray(folding.store.get(fold_key(CheckpointRef(1, 2))))
    damaged[-20] ^= 1
    folding.store.put(fold_key(CheckpointRef(1, 2)), bytes(damaged))
    folding.checkpoint(5, good=True, base=folding.keyframe(4))
    pin(folding.store, CheckpointRef(1, 5), owner="me", time_s=1.0)
    for step in range(6, 25):
        folding.checkpoint(step, good=True)
    assert compactor.begun == [CheckpointRef(1, 2), CheckpointRef(1, 5)]
    now_s[0] += 3 * LIMIT_S
    for step in (25, 26, 27):
        folding.checkpoint(step, good=True)
    assert {1, 2} <= set(steps_on_store(folding))
    read_shards(folding.store, load_manifest(folding.store, CheckpointRef(1, 2)), [tiny_shards(seed=2)[0].spec])
    assert manifest_key(CheckpointRef(1, 5)) not in {info.key for info in folding.store.list("manifests/")}
    assert journal(folding).count("checkpoint.fold_damaged") == 1
    assert "checkpoint.retention_failed" not in journal(folding)


def test_who_reads_what_was_folded_holds_its_keyframe_too(folding: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the lease comes after the plan: the differences may be what is read."""
    jumping(folding, monkeypatch)
    unpin(folding.store, CheckpointRef(1, 2))
    leases, secure = contextlib.ExitStack(), folding.ledger.secure

    def leased_meanwhile() -> None:
        secure()
        if CheckpointRef(1, 1) in folding.ledger.record.deleted:
            leases.enter_context(ReadLease(folding.store, [CheckpointRef(1, 2)]))

    monkeypatch.setattr(folding.ledger, "secure", leased_meanwhile)
    for step in range(4, 25):
        folding.checkpoint(step, good=True)
    assert CheckpointRef(1, 1) in folding.ledger.record.deleted
    assert {1, 2} <= set(steps_on_store(folding))
    leases.close()


def test_the_sweep_leaves_alone_what_a_fold_is_writing(folding: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take an hour, while packs count as old after two deadlines of a save."""
    ref = folding.checkpoint(5, good=True, base=folding.keyframe(4))
    read_back = fold_module._read_back

    def swept_then(*args: Any) -> None:
        read_back(*args)
        folding.keeper.sweep(4e9)

    monkeypatch.setattr(fold_module, "_read_back", swept_then)
    assert fold_held(folding.store, ref) is not None
    assert verify(folding.store, ref) == []
    assert list(folding.store.list("leases/")) == []


def test_what_is_known_to_be_damaged_is_not_one_of_the_newest_good_ones(staff: Staff) -> None:
    for step in range(1, 13):
        staff.checkpoint(step, good=True)
        if step in (11, 12):
            staff.ledger.note("checkpoint.corrupt", step=step, generation=1, why="a bit")
    staff.checkpoint(13)
    assert {9, 10} <= set(steps_on_store(staff))


def test_what_could_not_be_folded_is_noted_and_not_tried_again(tmp_path: Path, compactor: Here) -> None:
    compactor.why = "its process died"
    made = Staff(compactor.store, tmp_path, small_config(checkpoint=QUICK), compactor=compactor)
    made.begin()
    made.checkpoint(2, good=True, base=made.keyframe(1))
    pin(made.store, CheckpointRef(1, 2), owner="me", time_s=1.0)
    for step in (3, 4, 5, 6):
        made.keyframe(step)
    assert compactor.begun == [CheckpointRef(1, 2)]
    assert journal(made).count("checkpoint.fold_failed") == 1
    assert 1 in steps_on_store(made)
    made.close()
