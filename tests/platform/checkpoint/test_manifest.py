"""Manifests, parts and commits travel whole, by pickle and through the store."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING

import pytest
import zstandard
from pydantic import ValidationError

from stormsail.platform.checkpoint.manifest import (
    CheckpointMeta,
    Commit,
    RankPart,
    pack_manifest,
    unpack_manifest,
)
from stormsail.platform.checkpoint.reader import scan_commits
from stormsail.platform.checkpoint.records import canonical, seal, unseal
from stormsail.platform.errors import CheckpointError, InternalError
from stormsail.platform.messages import CheckpointRef

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

REF = CheckpointRef(1, 10)


def test_a_manifest_comes_back_from_its_bytes(kit: Kit) -> None:
    manifest = kit.save(kit.store(), kit.state(0), REF, parent=CheckpointRef(1, 0))
    found = unpack_manifest(pack_manifest(manifest), "m")
    assert found == manifest
    assert pack_manifest(found) == pack_manifest(manifest)
    assert (found.ref, found.stored_bytes) == (REF, sum(pack.size_bytes for pack in manifest.packs))


def test_a_state_that_was_not_evaluated_has_no_such_key_and_a_loss_must_be_finite(kit: Kit) -> None:
    meta = kit.meta(20, 1)
    assert b"eval_" not in canonical(meta)
    assert b'"eval_loss":1.5' in canonical(meta.model_copy(update={"eval_loss": 1.5}))
    for bad in (math.nan, math.inf):
        with pytest.raises(ValidationError, match="finite"):
            CheckpointMeta.model_validate({**dict(meta), "eval_loss": bad})


def test_a_part_travels_by_pickle_and_as_a_record(kit: Kit) -> None:
    part = kit.parts(kit.store(), kit.state(0), REF, 2)[1]
    assert pickle.loads(pickle.dumps(part)) == part
    assert unseal(seal(part), RankPart, "p") == part
    assert part.stored_bytes == sum(frame.length for frame in part.frames)


def test_a_manifest_is_no_bomb() -> None:
    claims_2_gb = zstandard.ZstdCompressor(level=1).compress(b"{}")
    params = zstandard.get_frame_parameters(claims_2_gb)
    assert params.content_size == 2
    unknown_size = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(b"{}" * 1000)
    for data in (unknown_size, b"", b"not zstd", claims_2_gb[:-1], claims_2_gb * 2, claims_2_gb):
        with pytest.raises(CheckpointError):
            unpack_manifest(data, "m")


def test_metadata_takes_no_nan_and_no_foreign_objects(kit: Kit) -> None:
    meta = kit.meta(10, 1)
    with pytest.raises(InternalError):
        seal(meta.model_copy(update={"detector": {"mean": math.nan}}))
    with pytest.raises(ValidationError):
        type(meta).model_validate({**meta.model_dump(), "extra": {"array": object()}})


def test_a_commit_is_finite_only_if_losses_and_state_are(kit: Kit) -> None:
    store = kit.store()
    kit.save(store, kit.state(0), REF)
    commit: Commit = scan_commits(store).commits[0]
    assert commit.finite
    assert not commit.model_copy(update={"losses_finite": False}).finite
    assert not commit.model_copy(update={"nonfinite": 1}).finite


def test_what_builds_on_nothing_is_written_as_it_always_was(kit: Kit) -> None:
    store = kit.store()
    manifest = kit.save(store, kit.state(0), REF)
    assert b'"base"' not in canonical(manifest)
    assert b'"base"' not in canonical(scan_commits(store).commits[0])
    assert b'"base"' not in canonical(kit.parts(kit.store(), kit.state(0), REF, 1)[0])


def test_what_builds_on_a_keyframe_comes_back_from_its_bytes(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, CheckpointRef(1, 5))
    manifest = kit.save(store, kit.drift(state, 1), REF, bases=bases)
    assert unpack_manifest(pack_manifest(manifest), "m") == manifest
    assert manifest.base == CheckpointRef(1, 5)
