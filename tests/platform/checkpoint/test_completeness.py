"""A manifest that does not describe one whole state is refused, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stormsail.platform.checkpoint.manifest import FrameEntry, Manifest, PackEntry
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

Change = Callable[[Manifest], dict[str, Any]]


def frames(manifest: Manifest, index: int, **changes: object) -> dict[str, Any]:
    changed = list(manifest.frames)
    changed[index] = replace(changed[index], **changes)  # type: ignore[arg-type]  # any field, on purpose
    return {"frames": tuple(changed)}


CHANGES: dict[str, tuple[Change, str]] = {
    "a frame is gone": (lambda m: {"frames": m.frames[1:]}, "not one frame's|has .* bytes, its frames"),
    "a frame is there twice": (lambda m: {"frames": (*m.frames, m.frames[0])}, "not one frame's"),
    "all frames are gone": (lambda m: {"frames": ()}, "its frames 0"),
    "elements are missing": (lambda m: frames(m, 0, start=m.frames[0].start + 1), "missing"),
    "elements overlap": (lambda m: frames(m, 1, start=m.frames[1].start - 1), "twice"),
    "elements beyond the tensor": (lambda m: frames(m, 1, count=m.frames[1].count + 1), "for a tensor of"),
    "a tensor without frames": (
        lambda m: {"tensors": (*m.tensors, replace(m.tensors[0], name="zzz"))},
        "zzz/exp_avg: elements 0 to 35 are missing",
    ),
    "a frame of an unknown tensor": (lambda m: frames(m, 0, tensor=99), "missing|unknown tensors"),
    "a frame of an unknown pack": (lambda m: frames(m, 0, pack=99), "names pack 99|not one frame"),
    "a frame of an unknown component": (lambda m: frames(m, 0, component="other"), "missing|unknown tensors"),
    "a pack twice": (lambda m: {"packs": (*m.packs, m.packs[0])}, "listed twice"),
    "a pack without frames": (
        lambda m: {"packs": (*m.packs, PackEntry(m.packs[-1].key[:-1] + "9", 5, ""))},
        "does not belong",
    ),
    "a pack of another checkpoint": (
        lambda m: {"packs": (replace(m.packs[0], key=m.packs[0].key.replace("010-", "020-")), *m.packs[1:])},
        "does not belong",
    ),
    "a pack of a rank that was not there": (
        lambda m: {"meta": m.meta.model_copy(update={"world_size": 1})},
        "does not belong",
    ),
    "a longer pack": (
        lambda m: {"packs": (replace(m.packs[0], size_bytes=m.packs[0].size_bytes + 1), *m.packs[1:])},
        "its frames",
    ),
    "another step in the metadata": (lambda m: {"meta": m.meta.model_copy(update={"step": 11})}, "of step 11"),
    "tensors out of order": (lambda m: {"tensors": m.tensors[::-1]}, "not sorted"),
    "components out of order": (
        lambda m: {"tensors": (replace(m.tensors[0], components=("master", "exp_avg")), *m.tensors[1:])},
        "not sorted",
    ),
    "another frame digest": (lambda m: frames(m, 0, digest="0" * 32), "add up"),
    "another root": (lambda m: {"root": "0" * 32}, "the root is"),
    "another component digest": (
        lambda m: {"component_digests": {**m.component_digests, "master": "0" * 32}},
        "add up",
    ),
}


@pytest.fixture(scope="module")
def manifest(kit: Kit) -> Manifest:
    return kit.save(kit.store(), kit.state(0), CheckpointRef(1, 10))


def test_what_the_writer_makes_is_complete(manifest: Manifest) -> None:
    manifest.check_complete()


@pytest.mark.parametrize("name", CHANGES)
def test_a_manifest_is_refused_where(name: str, manifest: Manifest) -> None:
    change, message = CHANGES[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        manifest.model_copy(update=change(manifest)).check_complete()
    assert caught.value.objects == ("manifests/00000001/000000000010",)


def test_a_frame_across_the_grid_is_refused(manifest: Manifest) -> None:
    first: FrameEntry = manifest.frames[0]
    big = replace(manifest.tensors[0], shape=(1 << 21,))
    crossing = replace(first, start=0, count=1 << 20)
    crossing = replace(crossing, start=crossing.start)
    tail = replace(manifest.frames[1], start=1 << 20, count=(1 << 20) - 1)
    changed = manifest.model_copy(
        update={
            "tensors": (big, *manifest.tensors[1:]),
            "frames": (
                replace(crossing, count=(1 << 20) - 1),
                replace(tail, start=(1 << 20) - 1),
                *manifest.frames[2:],
            ),
        }
    )
    with pytest.raises(CheckpointError, match="crosses the grid"):
        changed.check_complete()


def test_differences_and_a_keyframe_go_together(kit: Kit) -> None:
    store, state = kit.store(), kit.state(0)
    bases = kit.keyframes(store, state, CheckpointRef(1, 100))
    manifest = kit.save(store, kit.drift(state, 1), CheckpointRef(1, 110), bases=bases)
    manifest.check_complete()
    whole = tuple(replace(frame, base=None) for frame in manifest.frames)
    for wrong in ({"base": None}, {"frames": whole}, {"base": CheckpointRef(1, 110)}, {"base": CheckpointRef(2, 100)}):
        with pytest.raises(CheckpointError, match="keyframe"):
            manifest.model_copy(update=wrong).check_complete()
