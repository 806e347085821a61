"""Whether a manifest describes one whole state: every element exactly once, every byte of every pack accounted for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Never

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.keys import is_fold_pack, owner_of, pack_rank
from stormsail.platform.checkpoint.manifest import FrameEntry, Manifest, TensorEntry
from stormsail.platform.errors import CheckpointError


def check_complete(manifest: Manifest) -> None:
    """Check everything that can be known without reading a pack.

    Raises:
        CheckpointError: With the first thing that is wrong.
    """
    _check_identity(manifest)
    _check_base(manifest)
    _check_packs(manifest)
    _check_tensors(manifest)
    _check_coverage(manifest)
    _check_digests(manifest)


def _fail(manifest: Manifest, what: str) -> Never:
    key = manifest.key
    raise CheckpointError(what, where=key, todo="this checkpoint is not whole; use another one", objects=(key,))


def _check_identity(manifest: Manifest) -> None:
    if manifest.meta.step != manifest.step:
        _fail(manifest, f"the manifest is of step {manifest.step}, its metadata of step {manifest.meta.step}")


def _check_base(manifest: Manifest) -> None:
    if manifest.folded and manifest.base is not None:
        _fail(manifest, "it was folded and still builds on a keyframe")
    differences = any(frame.base is not None for frame in manifest.frames)
    if differences != (manifest.base is not None):
        _fail(manifest, "frames are differences, but no keyframe is named, or the other way round")
    if manifest.base is not None and not (
        manifest.base.step < manifest.step and manifest.base.generation <= manifest.generation
    ):
        _fail(manifest, f"a keyframe of step {manifest.base.step}, generation {manifest.base.generation} is not older")


def _check_packs(manifest: Manifest) -> None:
    keys = [pack.key for pack in manifest.packs]
    if len(set(keys)) != len(keys):
        _fail(manifest, "a pack is listed twice")
    for key in keys:
        # A pack belongs to the checkpoint in its key and to no other: that is what makes deleting safe.
        if owner_of(key) != manifest.ref or not _is_pack_of(manifest, key):
            _fail(manifest, f"the pack {key} does not belong to this checkpoint")
    _check_tiling(manifest)


def _is_pack_of(manifest: Manifest, key: str) -> bool:
    if manifest.folded:
        return is_fold_pack(key)
    rank = pack_rank(key)
    return rank is not None and rank < manifest.meta.world_size


def _check_tiling(manifest: Manifest) -> None:
    ends = [0] * len(manifest.packs)
    for frame in sorted(manifest.frames, key=lambda entry: (entry.pack, entry.offset)):
        if frame.pack >= len(ends):
            _fail(manifest, f"a frame names pack {frame.pack} of {len(ends)}")
        if frame.offset != ends[frame.pack]:
            key = manifest.packs[frame.pack].key
            _fail(manifest, f"bytes {ends[frame.pack]} to {frame.offset} of {key} are not one frame's")
        ends[frame.pack] += frame.length
    for pack, end in zip(manifest.packs, ends, strict=True):
        if end != pack.size_bytes:
            _fail(manifest, f"{pack.key} has {pack.size_bytes} bytes, its frames {end}")


def _check_tensors(manifest: Manifest) -> None:
    names = [tensor.name for tensor in manifest.tensors]
    if names != sorted(set(names)):
        _fail(manifest, "tensors are not sorted by name, or one is there twice")
    for tensor in manifest.tensors:
        if not tensor.components or list(tensor.components) != sorted(set(tensor.components)):
            _fail(manifest, f"components of {tensor.name} are not sorted, or one is there twice")


def _check_coverage(manifest: Manifest) -> None:
    held: dict[tuple[int, str], list[FrameEntry]] = defaultdict(list)
    for frame in manifest.frames:
        held[frame.tensor, frame.component].append(frame)
    for index, tensor in enumerate(manifest.tensors):
        for component in tensor.components:
            problem = _coverage_problem(tensor, held.pop((index, component), []))
            if problem:
                _fail(manifest, f"{tensor.name}/{component}: {problem}")
    if held:
        _fail(manifest, f"frames for unknown tensors or components: {sorted(held)[:3]}")


def _coverage_problem(tensor: TensorEntry, frames: Iterable[FrameEntry]) -> str:
    size = math.prod(tensor.shape)
    reached = 0
    for frame in sorted(frames, key=lambda entry: entry.start):
        if frame.start > reached:
            return f"elements {reached} to {frame.start} are missing"
        if frame.start < reached:
            return f"elements from {frame.start} are there twice"
        if frame.start // CHUNK_ELEMENTS != (frame.stop - 1) // CHUNK_ELEMENTS:
            return f"the frame at element {frame.start} crosses the grid"
        reached = frame.stop
    if reached < size:
        return f"elements {reached} to {size} are missing"
    return f"{reached} elements for a tensor of {size}" if reached > size else ""


def _check_digests(manifest: Manifest) -> None:
    sums = component_digests(manifest.tensors, manifest.frames)
    if sums != manifest.component_digests:
        _fail(manifest, f"digests of the frames add up to {sums}, not to {manifest.component_digests}")
    root = sum((Digest.from_hex(text) for text in sums.values()), start=Digest())
    if root.hex != manifest.root:
        _fail(manifest, f"digests add up to {root}, the root is {manifest.root}")


def component_digests(tensors: Iterable[TensorEntry], frames: Iterable[FrameEntry]) -> dict[str, str]:
    """Digest per component, of all tensors together; components without elements have the zero digest."""
    sums = {component: Digest() for tensor in tensors for component in tensor.components}
    for frame in frames:
        sums[frame.component] = sums.get(frame.component, Digest()) + Digest.from_hex(frame.digest)
    return {component: digest.hex for component, digest in sorted(sums.items())}
