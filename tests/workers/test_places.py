"""Where a rank's snapshots go and where they are found, and what is said when a place fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormsail.platform.checkpoint.shards import Words
from stormsail.platform.errors import CheckpointError, ClusterError, WorkerFaultError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault import slots as files
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.image import ImageRecord
from stormsail.platform.vault.images import Image
from stormsail.platform.vault.places import BUDDY
from stormsail.platform.vault.slots import IMAGE
from stormsail.workers.places import Places

REF = CheckpointRef(1, 10)


def record(rank: int) -> ImageRecord:
    return ImageRecord(generation=1, step=10, rank=rank, names=(), pieces=())


class Link:
    """A vault that gives what the test says."""

    def __init__(self, folder: VaultFolder, count: int = 3) -> None:
        self.folder = folder
        self.count = count
        self.away = False
        self.told: list[str] = []
        self.asked = 0

    def slots(self, size_bytes: int, wanted: int) -> Sequence[str]:
        if self.away:
            raise ClusterError("nobody answers")
        names = [f"{number:010d}" for number in range(min(self.count, wanted))]
        for name in names:
            files.create(self.folder, name, size_bytes)
        return names

    def sealed(self, slot: str) -> None:
        self.told.append(slot)

    def elsewhere(self, ref: CheckpointRef) -> Iterator[Image]:
        self.asked += 1
        assert ref == REF
        yield Image(BUDDY, "there", record(7), np.zeros(0, np.uint8), discard=lambda: None)


@pytest.fixture
def folder(tmp_path: Path) -> VaultFolder:
    (tmp_path / "shm").mkdir()
    made = VaultFolder(tmp_path / "shm" / "home" / "run")
    made.make(1 << 20)
    return made


class Desk:
    def __init__(self, folder: VaultFolder, *, count: int = 3, ring: int = 3) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.link = Link(folder, count)
        self.places = Places(2, ring, folder, self.link, lambda kind, **more: self.events.append((kind, more)))


def test_slots_come_from_the_vault_and_snapshots_are_found_there(folder: VaultFolder) -> None:
    desk = Desk(folder)
    slots = desk.places.acquire(500)
    assert len(slots) == 3
    assert slots[0].begin()
    slots[0].seal(record(2))
    desk.places.sealed(slots[0])
    assert desk.link.told == ["0000000000"]
    assert [image.record.rank for image in desk.places.images(REF)] == [2, 7]
    assert desk.events == []
    for slot in slots:
        slot.close()


def test_others_are_asked_only_when_this_node_is_not_enough(folder: VaultFolder) -> None:
    desk = Desk(folder)
    slots = desk.places.acquire(500)
    assert slots[0].begin()
    slots[0].seal(record(2))
    next(desk.places.images(REF)).close()
    assert desk.link.asked == 0
    for slot in slots:
        slot.close()


@pytest.mark.parametrize(("count", "away", "why"), [(3, True, "nobody answers"), (0, False, "vault_gib")])
def test_without_a_vault_snapshots_stay_in_memory_and_it_is_said(
    folder: VaultFolder, count: int, away: bool, why: str
) -> None:
    desk = Desk(folder, count=count)
    desk.link.away = away
    slots = desk.places.acquire(500)
    assert [slot.path for slot in slots] == [None, None]
    [(kind, told)] = desk.events
    assert kind == "vault.unused"
    assert told["rank"] == 2
    assert why in told["why"]
    desk.places.sealed(slots[0])
    assert desk.link.told == []


def test_a_run_that_wants_no_vault_says_nothing(folder: VaultFolder) -> None:
    events: list[str] = []
    places = Places(0, 1, folder, None, lambda kind, **_more: events.append(kind))
    assert [slot.path for slot in places.acquire(500)] == [None]
    assert list(places.images(REF)) == []
    assert events == []


def test_slots_are_pinned_for_a_device_and_a_refusal_is_only_told(folder: VaultFolder) -> None:
    pinned: list[int] = []

    def pin(words: Words) -> None:
        pinned.append(words.size)
        if len(pinned) > 3:
            raise WorkerFaultError("no more")

    told: list[str] = []
    places = Places(0, 3, folder, None, lambda kind, **_more: told.append(kind), pin)
    assert len(places.acquire(400)) == 2
    assert told == []
    assert len(places.acquire(400)) == 2
    assert (pinned, told) == ([100] * 4, ["snapshot.unpinned"])


def test_what_could_not_be_used_is_told(folder: VaultFolder) -> None:
    desk = Desk(folder)
    image = Image(BUDDY, "there", record(7), np.zeros(0, np.uint8), discard=lambda: None)
    desk.places.trouble(image, CheckpointError("damaged", where="there"))
    slots = desk.places.acquire(500)
    path = slots[0].path
    assert path is not None
    path.with_name(path.name + IMAGE).write_bytes(b"nonsense")
    assert [found.record.rank for found in desk.places.images(REF)] == [7]
    assert [kind for kind, _ in desk.events] == ["place.damaged", "place.damaged"]
    assert [told["place"] for _, told in desk.events] == ["buddy", "vault"]
    assert (desk.events[0][1]["step"], desk.events[0][1]["ref_generation"]) == (10, 1)
    for slot in slots:
        slot.close()
