"""Frames and what they build on come together, and an error names the keyframe and its object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.fetch import plan_requests
from stormsail.platform.checkpoint.keys import commit_key, manifest_key
from stormsail.platform.checkpoint.manifest import Manifest
from stormsail.platform.checkpoint.opening import load_links, open_request
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit, State

KEY, REF = CheckpointRef(1, 100), CheckpointRef(1, 110)


@pytest.fixture
def store(kit: Kit) -> MemoryStore:
    store = kit.store()
    bases = kit.keyframes(store, kit.state(0), KEY)
    kit.save(store, newer(kit), REF, bases=bases)
    return store


def newer(kit: Kit) -> State:
    return kit.drift(kit.state(0), 1)


def opened(store: MemoryStore, manifest: Manifest) -> tuple[int, list[CheckpointError]]:
    """How many frames were right, and what was told."""
    errors: list[CheckpointError] = []
    links = load_links(store, manifest)
    count = sum(
        1
        for request in plan_requests(manifest.frames)
        for _ in open_request(store, manifest, links, request, errors.append)
    )
    return count, errors


def test_every_frame_comes_back_as_the_newer_state(kit: Kit, store: MemoryStore) -> None:
    manifest, state = load_manifest(store, REF), newer(kit)
    links = load_links(store, manifest)
    for request in plan_requests(manifest.frames):
        for frame, words in open_request(store, manifest, links, request, lambda error: pytest.fail(str(error))):
            values = state[manifest.tensors[frame.tensor].name, frame.component][frame.start : frame.stop]
            assert np.array_equal(words, values.view(np.uint32))


def test_a_checkpoint_that_is_whole_needs_no_other(store: MemoryStore) -> None:
    manifest = load_manifest(store, KEY)
    assert load_links(store, manifest) is None
    assert opened(store, manifest) == (len(manifest.frames), [])


@pytest.mark.parametrize("key", [commit_key(KEY), manifest_key(KEY)])
def test_a_keyframe_that_is_gone_is_named_with_its_link(store: MemoryStore, key: str) -> None:
    manifest = load_manifest(store, REF)
    store.delete(key)
    with pytest.raises(CheckpointError, match="step 110 builds on step 100 of generation 1") as caught:
        load_links(store, manifest)
    assert caught.value.objects == (key,)


def test_damage_in_a_keyframe_spoils_only_what_builds_on_it(store: MemoryStore) -> None:
    base, manifest = load_manifest(store, KEY), load_manifest(store, REF)
    victim = next(frame for frame in base.frames if frame.component == "master")
    key = base.packs[victim.pack].key
    body = bytearray(store.get(key))
    body[victim.offset + 50] ^= 1
    store.put(key, bytes(body))
    count, errors = opened(store, manifest)
    assert count == len(manifest.frames) - 1
    assert [error.objects for error in errors] == [(key,)]
    assert "step 110 builds on step 100" in errors[0].what


def test_a_keyframe_of_other_words_is_refused(kit: Kit, store: MemoryStore) -> None:
    """Somebody wrote a sound but different checkpoint where the keyframe was."""
    manifest = load_manifest(store, REF)
    for info in list(store.list()):
        if "000000000100" in info.key:
            store.delete(info.key)
    kit.save(store, kit.state(7), KEY)
    _, errors = opened(store, manifest)
    assert len(errors) == sum(frame.base is not None for frame in manifest.frames)
    assert all(error.objects == (manifest_key(REF),) for error in errors)
