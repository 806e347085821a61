"""From a difference to the frame of the keyframe that it builds on; pure.

A frame names its parent by content, never by address: the parent is the frame of the same elements in the keyframe,
and its state digest must be the one that the difference was made against. Depth is 1: a parent is whole in itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Never, TypeAlias

from stormsail.platform.checkpoint.keys import manifest_key
from stormsail.platform.checkpoint.manifest import FrameEntry, Manifest
from stormsail.platform.errors import CheckpointError

Elements: TypeAlias = tuple[str, str, int, int]


class Links:
    """The parents of one checkpoint's differences.

    Args:
        manifest: The checkpoint with differences.
        base: Its keyframe.

    Raises:
        CheckpointError: `base` is not the keyframe that the manifest names, or is itself a difference.
    """

    def __init__(self, manifest: Manifest, base: Manifest) -> None:
        self.manifest = manifest
        self.base = base
        if manifest.base != base.ref:
            _fail(manifest, f"{_named(base)} is not the one that it names: {manifest.base}")
        if base.base is not None:
            _fail(manifest, f"{_named(base)} builds on step {base.base.step} in turn, and chains have one link")
        self._held = {_elements(base, frame): frame for frame in base.frames}

    def parent(self, frame: FrameEntry) -> FrameEntry:
        """The keyframe's frame that a difference builds on.

        Raises:
            CheckpointError: The keyframe has no such frame, or one of another state.
        """
        name, component, start, count = elements = _elements(self.manifest, frame)
        what = f"{name}/{component} elements {start} to {start + count}"
        found = self._held.get(elements)
        if found is None:
            _fail(self.manifest, f"{what} build on {_named(self.base)}, which has no frame of them")
        if found.digest != frame.base:
            _fail(
                self.manifest,
                f"{what} build on the state {frame.base} of {_named(self.base)}, which holds {found.digest}",
            )
        return found

    def parents(self, frames: Iterable[FrameEntry]) -> list[FrameEntry]:
        """The parents of those frames that are differences.

        Raises:
            CheckpointError: One of them has none.
        """
        return [self.parent(frame) for frame in frames if frame.base is not None]


def _elements(manifest: Manifest, frame: FrameEntry) -> Elements:
    return manifest.tensors[frame.tensor].name, frame.component, frame.start, frame.count


def _named(base: Manifest) -> str:
    return f"its keyframe (step {base.step}, generation {base.generation})"


def _fail(manifest: Manifest, what: str) -> Never:
    key = manifest_key(manifest.ref)
    raise CheckpointError(what, where=key, todo="this checkpoint cannot be read; use another one", objects=(key,))
