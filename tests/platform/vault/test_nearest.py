"""The nearest place that has a piece whole gives it; the rest comes from the store, and nothing else is ever used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.platform.vault.conftest import REF, Saved
from tests.support.fake_s3 import FakeS3, Stall

from stormsail.platform.checkpoint.shards import ShardSpec
from stormsail.platform.errors import CheckpointError, ClusterError, StateMismatchError, StorageUnavailableError
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import StoreAddress
from stormsail.platform.vault.images import Image, images_in_slots, images_in_vault
from stormsail.platform.vault.nearest import Nearest, read_nearest
from stormsail.platform.vault.places import MEMORY, STORE, VAULT


class Reader:
    def __init__(self, saved: Saved) -> None:
        self.saved = saved
        self.told: list[str] = []
        self.opened: list[Image] = []

    def images(self, *, own: bool = False) -> Iterator[Image]:
        places = [images_in_slots(self.saved.slots, REF)] if own else []
        for images in [*places, images_in_vault(self.saved.folder, REF, lambda _place, _error: None)]:
            for image in images:
                self.opened.append(image)
                yield image

    def read(self, rank: int = 0, world_size: int = 2, *, own: bool = False) -> Nearest:
        found = read_nearest(
            self.saved.store,
            self.saved.manifest,
            self.saved.specs(rank, world_size),
            self.images(own=own),
            lambda image, error: self.told.append(f"{image.place} {image.record.rank}: {error.what}"),
        )
        assert self.saved.is_state(found.shards)
        for image in self.opened:
            image.close()
        return found


@pytest.fixture
def reader(saved: Saved) -> Reader:
    return Reader(saved)


@pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
def test_a_store_that_never_answers_is_not_missed_while_a_nearer_place_has_all_and_ends_clearly_where_none_has(
    saved: Saved, reader: Reader, fake_s3: FakeS3, fake_address: StoreAddress
) -> None:
    fake_s3.rule = lambda *_: Stall(30.0)
    brief = Patience(busy_s=0.3, away_s=0.3, first_wait_s=0.02, longest_wait_s=0.05)
    silent = S3Store(replace(fake_address, timeout_s=0.5), patience=brief)

    def read() -> Nearest:
        return read_nearest(
            silent,
            saved.manifest,
            saved.specs(0, 2),
            reader.images(),
            lambda image, _error: reader.told.append(image.place),
        )

    found = read()
    assert saved.is_state(found.shards)
    assert list(found.bytes_from) == [VAULT]
    saved.flip(0)
    with pytest.raises(StorageUnavailableError, match="timed out"):
        read()
    assert reader.told == [VAULT]


def test_a_rank_reads_its_own_image_without_copying_it(reader: Reader) -> None:
    found = reader.read(1)
    assert list(found.bytes_from) == [VAULT]
    assert found.bytes_from[VAULT] == sum(shard.values.nbytes for shard in found.shards)
    assert not any(shard.values.flags.owndata for shard in found.shards)


def test_this_process_s_memory_comes_first_and_nobody_else_is_asked(reader: Reader) -> None:
    assert list(reader.read(0, own=True).bytes_from) == [MEMORY]
    assert [image.place for image in reader.opened] == [MEMORY]


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_another_number_of_ranks_puts_the_images_together(reader: Reader, world_size: int) -> None:
    for rank in range(world_size):
        assert list(reader.read(rank, world_size).bytes_from) == [VAULT]


def test_without_an_image_all_comes_from_the_store(reader: Reader) -> None:
    for slot in reader.saved.slots:
        slot.discard()
    assert list(reader.read().bytes_from) == [STORE]


def test_a_damaged_image_is_put_aside_and_the_store_is_used_in_the_same_pass(reader: Reader) -> None:
    reader.saved.flip(0, byte=130)
    found = reader.read(0)
    assert set(found.bytes_from) == {VAULT, STORE}  # what came before the flipped bit was whole
    assert [text.partition(":")[0] for text in reader.told] == ["vault 0"]
    assert list(reader.read(0).bytes_from) == [STORE]
    assert len(reader.told) == 1


def test_what_one_rank_lost_the_others_images_do_not_replace(reader: Reader) -> None:
    reader.saved.slots[0].discard()
    assert set(reader.read(0, 1).bytes_from) == {VAULT, STORE}


def test_an_image_of_another_state_is_not_used_though_it_is_whole(reader: Reader) -> None:
    frames = tuple(
        frame.model_copy() if hasattr(frame, "model_copy") else frame for frame in reader.saved.manifest.frames
    )
    other = Saved.__new__(Saved)
    other.__dict__.update(reader.saved.__dict__)
    from dataclasses import replace

    wrong = tuple(replace(frame, digest="0" * 32) for frame in frames)
    other.manifest = reader.saved.manifest.model_copy(update={"frames": wrong})
    images = reader.images()
    with pytest.raises(CheckpointError, match="state digest"):  # the store does not have that state either
        read_nearest(other.store, other.manifest, other.specs(0, 2), images, lambda _image, _error: None)


def test_a_vault_that_does_not_answer_costs_nothing_but_the_way_to_the_store(reader: Reader) -> None:
    [image] = list(images_in_slots(reader.saved.slots[:1], REF))

    def fetch(_start: int, _stop: int, _target: object) -> None:
        raise ClusterError("nobody answers")

    away = Image("buddy", "there", image.record, reader.saved.slots[0].bytes, discard=pytest.fail, fetch=fetch)
    found = read_nearest(
        reader.saved.store,
        reader.saved.manifest,
        reader.saved.specs(0, 2),
        iter([away]),
        lambda _image, error: reader.told.append(error.what),
    )
    assert reader.saved.is_state(found.shards)
    assert (list(found.bytes_from), reader.told) == ([STORE], ["nobody answers"])


@pytest.mark.parametrize("spec", [ShardSpec("embed", "master", (5, 7), 0, 35), ShardSpec("new", "master", (3,), 0, 3)])
def test_another_model_is_told_by_name_before_any_image_is_opened(reader: Reader, spec: ShardSpec) -> None:
    with pytest.raises(StateMismatchError):
        read_nearest(reader.saved.store, reader.saved.manifest, [spec], reader.images(), lambda _image, _error: None)
    assert reader.opened == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_bit_flips_the_state_is_the_committed_one(saved: Saved, data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from([0, 1]))
    record = saved.slots[rank].record
    if record is None:  # put aside by an example before
        return
    byte = data.draw(st.integers(0, record.size_bytes - 1))
    saved.flip(rank, byte=byte)
    reader = Reader(saved)
    reader.read(rank)
    saved.flip(rank, byte=byte)
    if saved.slots[rank].path is not None and reader.told:
        from stormsail.platform.vault.slots import write_record

        path = saved.slots[rank].path
        assert path is not None
        write_record(path, record)
