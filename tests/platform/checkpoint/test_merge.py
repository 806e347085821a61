"""The parts of all ranks make one manifest, or an error that names the rank."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stormsail.platform.checkpoint.manifest import Manifest, RankPart
from stormsail.platform.checkpoint.merge import merge
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

REF = CheckpointRef(1, 10)


@pytest.fixture
def parts(kit: Kit) -> list[RankPart]:
    return kit.parts(kit.store(), kit.state(0), REF, 3)


def test_the_order_of_the_parts_does_not_matter(kit: Kit, parts: list[RankPart]) -> None:
    one = merge(parts, kit.meta(10, 3), None)
    other: Manifest = merge(parts[::-1], kit.meta(10, 3), None)
    assert one == other


def test_the_root_does_not_depend_on_the_world_size(kit: Kit) -> None:
    manifests = [kit.save(kit.store(), kit.state(0), REF, world_size=size) for size in (1, 2, 3, 4)]
    assert len({manifest.root for manifest in manifests}) == 1
    assert all(manifest.component_digests == manifests[0].component_digests for manifest in manifests)


def test_no_part_at_all_is_an_error(kit: Kit) -> None:
    with pytest.raises(CheckpointError, match="no rank"):
        merge([], kit.meta(10, 3), None)


def test_a_missing_rank_is_an_error(kit: Kit, parts: list[RankPart]) -> None:
    with pytest.raises(CheckpointError, match=r"ranks \[0, 2\]"):
        merge([parts[0], parts[2]], kit.meta(10, 3), None)


def test_a_rank_that_wrote_twice_is_an_error(kit: Kit, parts: list[RankPart]) -> None:
    with pytest.raises(CheckpointError, match=r"ranks \[0, 1, 1, 2\]"):
        merge([*parts, parts[1]], kit.meta(10, 3), None)


@pytest.mark.parametrize("change", [{"generation": 2}, {"step": 20}, {"world_size": 4}])
def test_parts_of_different_saves_never_mix(kit: Kit, parts: list[RankPart], change: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="rank 1 wrote"):
        merge([parts[0], parts[1].model_copy(update=change), parts[2]], kit.meta(10, 3), None)


def test_ranks_must_agree_on_shapes(kit: Kit, parts: list[RankPart]) -> None:
    other = replace(parts[1].tensors[0], shape=(5, 7))
    changed = parts[1].model_copy(update={"tensors": (other, *parts[1].tensors[1:])})
    with pytest.raises(CheckpointError, match=r"embed\.weight has the shape"):
        merge([parts[0], changed, parts[2]], kit.meta(10, 3), None)


def test_a_component_that_one_rank_left_out_is_missed(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    from stormsail.platform.checkpoint.writer import write_part

    parts = []
    for rank in range(2):
        specs = [spec for spec in kit.specs(rank, 2) if rank == 0 or spec.component != "exp_avg"]
        parts.append(
            write_part(
                store,
                generation=1,
                step=10,
                rank=rank,
                world_size=2,
                shards=kit.shards(state, specs),
                cancelled=lambda: False,
            )
        )
    with pytest.raises(CheckpointError, match=r"exp_avg: elements .* are missing"):
        merge(parts, kit.meta(10, 2), None)


def test_a_frame_of_no_tensor_is_an_error(kit: Kit, parts: list[RankPart]) -> None:
    lost = (replace(parts[1].frames[0], tensor=99), *parts[1].frames[1:])
    with pytest.raises(CheckpointError, match="does not have"):
        merge([parts[0], parts[1].model_copy(update={"frames": lost}), parts[2]], kit.meta(10, 3), None)


def test_a_part_whose_digest_is_not_that_of_its_frames_is_an_error(kit: Kit, parts: list[RankPart]) -> None:
    with pytest.raises(CheckpointError, match="add up"):
        merge([parts[0], parts[1].model_copy(update={"digest": "0" * 32}), parts[2]], kit.meta(10, 3), None)


def test_a_rank_that_wrote_in_full_joins_ranks_that_did_not(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    bases = [None, *kit.keyframes(store, state, CheckpointRef(1, 5), 3)[1:]]
    manifest = merge(kit.parts(store, kit.drift(state, 1), REF, 3, bases=bases), kit.meta(10, 3), None)
    assert manifest.base == CheckpointRef(1, 5)


def test_ranks_that_build_on_different_keyframes_make_no_checkpoint(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    older = kit.keyframes(store, state, CheckpointRef(1, 3), 2)
    younger = kit.keyframes(store, state, CheckpointRef(1, 5), 2)
    made = kit.parts(store, kit.drift(state, 1), REF, 2, bases=[older[0], younger[1]])
    with pytest.raises(CheckpointError, match=r"step 3 \(generation 1\), step 5 \(generation 1\)"):
        merge(made, kit.meta(10, 2), None)
