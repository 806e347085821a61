"""A difference finds the very frame that it was made against, or names the link that is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stormsail.platform.checkpoint.keys import manifest_key
from stormsail.platform.checkpoint.links import Links
from stormsail.platform.checkpoint.manifest import Manifest
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

KEY, REF = CheckpointRef(1, 100), CheckpointRef(1, 110)


@pytest.fixture
def pair(kit: Kit) -> tuple[Manifest, Manifest]:
    """A keyframe, and a checkpoint that builds on it."""
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, KEY)
    base = kit.save(store, state, KEY)
    return base, kit.save(store, kit.drift(state, 1), REF, bases=bases)


def test_each_difference_leads_to_the_same_elements(pair: tuple[Manifest, Manifest]) -> None:
    base, manifest = pair
    links = Links(manifest, base)
    differences = [frame for frame in manifest.frames if frame.base is not None]
    assert {frame.component for frame in differences} == {"master", "exp_avg_sq"}
    for frame, parent in zip(differences, links.parents(manifest.frames), strict=True):
        assert (parent.component, parent.start, parent.count) == (frame.component, frame.start, frame.count)
        assert base.tensors[parent.tensor].name == manifest.tensors[frame.tensor].name
        assert parent.digest == frame.base


def test_another_checkpoint_is_not_its_keyframe(pair: tuple[Manifest, Manifest]) -> None:
    base, manifest = pair
    with pytest.raises(CheckpointError, match=r"step 90, generation 1\) is not the one that it names") as caught:
        Links(manifest, base.model_copy(update={"step": 90}))
    assert caught.value.objects == (manifest_key(REF),)


def test_a_chain_of_two_links_is_refused(pair: tuple[Manifest, Manifest]) -> None:
    base, manifest = pair
    with pytest.raises(CheckpointError, match=r"step 100, generation 1\) builds on step 90 in turn"):
        Links(manifest, base.model_copy(update={"base": CheckpointRef(1, 90)}))


def test_a_parent_of_another_state_is_named(pair: tuple[Manifest, Manifest]) -> None:
    base, manifest = pair
    changed = tuple(replace(frame, digest="ab" * 16) for frame in base.frames)
    links = Links(manifest, base.model_copy(update={"frames": changed}))
    with pytest.raises(CheckpointError, match=r"embed.weight/exp_avg_sq elements 0 to \d+ build on the state .* abab"):
        links.parents(manifest.frames)


def test_a_parent_that_is_not_there_is_named(pair: tuple[Manifest, Manifest]) -> None:
    base, manifest = pair
    links = Links(manifest, base.model_copy(update={"frames": ()}))
    with pytest.raises(CheckpointError, match="which has no frame of them"):
        links.parents(manifest.frames)
