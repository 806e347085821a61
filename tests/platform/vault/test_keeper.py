"""The vault of a node: slots within a budget, copies for another node, images for readers, nothing left in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.platform.vault.conftest import REF, Saved

from stormsail.platform.checkpoint.records import seal, unseal
from stormsail.platform.errors import CheckpointError, ClusterError, StorageFullError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.image import ImageRecord
from stormsail.platform.vault.keeper import CHUNK_BYTES, VaultKeeper, chunks
from stormsail.platform.vault.slots import OpenSlot, Slot

SIZE = 40_000
BUDGET = 1 << 20


@pytest.fixture
def keeper(folder: VaultFolder) -> Iterator[VaultKeeper]:
    made = VaultKeeper(folder, BUDGET)
    yield made
    made.close()


def lease(keeper: VaultKeeper, names: list[str]) -> list[Slot]:
    found = [Slot.lease(keeper.folder.slots / name) for name in names]
    assert all(slot is not None for slot in found)
    return [slot for slot in found if slot is not None]


def later(keeper: VaultKeeper) -> None:
    """Nobody is about to take a slot any more."""
    keeper._handed.clear()


def test_ranks_get_slots_of_their_own(keeper: VaultKeeper) -> None:
    first, second = keeper.slots(0, SIZE, 3, 2), keeper.slots(1, SIZE, 3, 2)
    assert len({*first, *second}) == 6
    assert all(slot.bytes.size >= SIZE for slot in lease(keeper, first))


def test_the_next_process_of_a_rank_gets_the_slots_of_the_dead_one(keeper: VaultKeeper) -> None:
    names = keeper.slots(0, SIZE, 2, 1)
    alive = lease(keeper, names)
    later(keeper)
    assert not set(names) & set(keeper.slots(0, SIZE, 2, 1))
    for slot in alive:
        slot.close()
    later(keeper)
    assert set(names) <= set(keeper.slots(0, SIZE, 4, 1))


def test_a_slot_is_offered_to_one_process_only(keeper: VaultKeeper) -> None:
    assert not set(keeper.slots(0, SIZE, 2, 1)) & set(keeper.slots(0, SIZE, 2, 1))


def test_a_rank_gets_no_more_than_its_share_of_the_budget(keeper: VaultKeeper) -> None:
    size = BUDGET // 8
    assert len(keeper.slots(0, size, 10, 2)) == 3
    assert len(keeper.slots(1, size, 10, 2)) == 3
    assert keeper.state().used_bytes <= BUDGET
    assert keeper.slots(2, BUDGET, 1, 2) == []


def test_half_of_the_budget_is_for_copies_where_there_is_a_buddy(keeper: VaultKeeper) -> None:
    keeper.expect_copies(expected=True)
    assert len(keeper.slots(0, BUDGET // 8, 10, 1)) == 3


def test_what_nobody_has_makes_room_the_oldest_first(keeper: VaultKeeper) -> None:
    for rank in range(4):
        keeper.slots(rank, BUDGET // 8, 1, 1)
    later(keeper)
    names = keeper.slots(7, BUDGET // 4, 3, 1)
    assert len(names) == 3
    assert keeper.state().used_bytes <= BUDGET


def test_slots_that_are_too_many_now_are_given_up(keeper: VaultKeeper) -> None:
    keeper.slots(0, SIZE, 4, 1)
    later(keeper)
    assert len(keeper.slots(0, SIZE, 2, 1)) == 2
    assert len(list(keeper.folder.slots.glob("0" * 9 + "?"))) == 2


def test_a_second_vault_of_the_same_run_is_refused(keeper: VaultKeeper) -> None:
    with pytest.raises(ClusterError):
        VaultKeeper(keeper.folder, BUDGET)


def test_a_vault_that_is_started_again_still_has_the_images(saved: Saved) -> None:
    first = VaultKeeper(saved.folder, BUDGET)
    first.close()
    second = VaultKeeper(saved.folder, BUDGET)
    assert second.state().images == 2
    assert second.state().born_s > first.state().born_s
    second.close()


def test_images_are_named_and_read_in_chunks(saved: Saved) -> None:
    keeper = VaultKeeper(saved.folder, BUDGET)
    [(name, stored), _] = keeper.images(REF)
    record = unseal(stored, ImageRecord, name)
    assert record == saved.record(0)
    assert keeper.read(name, 3, 9) == saved.slots[0].bytes[3:9].tobytes()
    assert keeper.images(CheckpointRef(9, 9)) == []
    keeper.discard(name)
    assert len(keeper.images(REF)) == 1
    with pytest.raises(CheckpointError):
        keeper.read("0000900009", 0, 1)
    keeper.close()


def test_a_copy_on_another_node_is_the_image(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> None:
    here, there = VaultKeeper(saved.folder, BUDGET), buddy(tmp_path_factory)
    for slot in saved.slots:
        assert slot.path is not None
        sent = here.send(
            slot.path.name,
            lambda rank, size: there.begin_copy("node a", rank, size),
            there.write_copy,
            there.end_copy,
        )
        assert sent == REF
    assert [unseal(stored, ImageRecord, "") for _, stored in there.images(REF)] == [saved.record(0), saved.record(1)]
    name, stored = there.images(REF)[1]
    size = unseal(stored, ImageRecord, "").size_bytes
    assert there.read(name, 0, size) == saved.slots[1].bytes[:size].tobytes()
    saved.slots[0].discard()
    assert saved.slots[0].path is not None
    assert here.send(saved.slots[0].path.name, pytest.fail, pytest.fail, pytest.fail) is None  # type: ignore[arg-type]
    here.close()
    there.close()


def test_two_copies_of_each_rank_are_kept_the_oldest_makes_room(
    saved: Saved, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = buddy(tmp_path_factory)
    record = saved.record(0)
    for step in (10, 20, 30):
        name = there.begin_copy("node a", 0, record.size_bytes)
        there.write_copy(name, 0, saved.slots[0].bytes[: record.size_bytes].tobytes())
        there.end_copy(name, seal(record.model_copy(update={"step": step})))
    assert [len(there.images(CheckpointRef(1, step))) for step in (10, 20, 30)] == [0, 1, 1]
    there.close()


def test_a_copy_that_is_being_read_is_not_overwritten(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = buddy(tmp_path_factory)
    record, words = saved.record(0), saved.slots[0].bytes[: saved.record(0).size_bytes].tobytes()
    names = []
    for step in (10, 20):
        names.append(there.begin_copy("node a", 0, record.size_bytes))
        with pytest.raises(OSError, match="unavailable"):
            OpenSlot(there.folder.slots / names[-1])  # nobody reads what is still coming
        there.write_copy(names[-1], 0, words)
        there.end_copy(names[-1], seal(record.model_copy(update={"step": step})))
    older = OpenSlot(there.folder.slots / names[0])
    assert there.begin_copy("node a", 0, record.size_bytes) == names[1]
    newer = there.begin_copy("node a", 0, record.size_bytes)  # the sender died, and begins anew
    assert newer == names[1]
    there.write_copy(newer, 0, bytes(record.size_bytes))
    assert older.bytes[: record.size_bytes].tobytes() == words
    there.write_copy(newer, 0, words)
    there.end_copy(newer, seal(record.model_copy(update={"step": 30})))
    other = OpenSlot(there.folder.slots / newer)
    with pytest.raises(StorageFullError, match="being read"):
        there.begin_copy("node a", 0, record.size_bytes)
    older.close()
    other.close()
    assert there.begin_copy("node a", 0, record.size_bytes) == names[0]
    with pytest.raises(CheckpointError, match="no copy was begun"):
        there.write_copy(names[1], 0, words)
    there.close()


def test_a_copy_that_is_not_what_was_sent_is_not_kept(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = buddy(tmp_path_factory)
    record = saved.record(0)
    name = there.begin_copy("node a", 0, record.size_bytes)
    there.write_copy(name, 0, bytes(record.size_bytes))
    with pytest.raises(CheckpointError):
        there.end_copy(name, seal(record))
    assert there.images(REF) == []
    with pytest.raises(StorageFullError):
        there.begin_copy("node a", 1, 2 * BUDGET)
    there.close()


def test_nothing_is_left_in_the_end(saved: Saved) -> None:
    keeper = VaultKeeper(saved.folder, BUDGET)
    keeper.end()
    keeper.close()
    assert not saved.folder.path.exists()


def test_a_range_is_cut_into_messages() -> None:
    assert list(chunks(5, 5)) == []
    assert list(chunks(5, CHUNK_BYTES + 6)) == [(5, CHUNK_BYTES + 5), (CHUNK_BYTES + 5, CHUNK_BYTES + 6)]


def buddy(tmp_path_factory: pytest.TempPathFactory) -> VaultKeeper:
    root = tmp_path_factory.mktemp("shm")
    return VaultKeeper(VaultFolder(root / "home" / "run-buddy"), BUDGET)
