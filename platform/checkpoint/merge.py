"""From what each rank wrote to the manifest of the whole; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stormsail.platform.checkpoint.completeness import component_digests
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.keys import part_key
from stormsail.platform.checkpoint.manifest import (
    CheckpointMeta,
    FrameEntry,
    Manifest,
    PackEntry,
    RankPart,
    TensorEntry,
)
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef


def merge(parts: Sequence[RankPart], meta: CheckpointMeta, parent: CheckpointRef | None) -> Manifest:
    """Put the parts of all ranks together and check that they are one whole state.

    Raises:
        CheckpointError: Ranks are missing or disagree, or elements are missing or there twice.
    """
    parts = sorted(parts, key=lambda part: part.rank)
    _check_ranks(parts, meta)
    tensors = _merge_tensors(parts)
    places = {tensor.name: index for index, tensor in enumerate(tensors)}
    packs: list[PackEntry] = []
    frames: list[FrameEntry] = []
    for part in parts:
        frames.extend(_moved(part, len(packs), places))
        packs.extend(part.packs)
    digests = component_digests(tensors, frames)
    root = sum((Digest.from_hex(part.digest) for part in parts), start=Digest())
    manifest = Manifest(
        generation=parts[0].generation,
        step=parts[0].step,
        parent=parent,
        meta=meta,
        tensors=tensors,
        packs=tuple(packs),
        frames=tuple(sorted(frames, key=lambda frame: (frame.tensor, frame.component, frame.start))),
        nonfinite=sum(part.nonfinite for part in parts),
        root=root.hex,
        component_digests=digests,
        base=_common_base(parts),
    )
    manifest.check_complete()
    return manifest


def _check_ranks(parts: Sequence[RankPart], meta: CheckpointMeta) -> None:
    if not parts:
        raise CheckpointError("no rank wrote a part of this checkpoint")
    first = parts[0]
    expected = (first.generation, meta.step, meta.world_size)
    for part in parts:
        found = (part.generation, part.step, part.world_size)
        if found != expected:
            raise CheckpointError(
                f"rank {part.rank} wrote (generation, step, world size) {found}, expected {expected}",
                where=part_key(part.ref, part.rank),
            )
    ranks = [part.rank for part in parts]
    if ranks != list(range(meta.world_size)):
        raise CheckpointError(
            f"parts of ranks {ranks} are there, expected one from each of 0 to {meta.world_size - 1}",
            where=f"generation {first.generation}, step {meta.step}",
        )


def _common_base(parts: Sequence[RankPart]) -> CheckpointRef | None:
    """The keyframe that the ranks' differences build on; a rank may have written everything in full."""
    bases = {part.base for part in parts if part.base is not None}
    if len(bases) > 1:
        names = ", ".join(f"step {base.step} (generation {base.generation})" for base in sorted(bases, key=str))
        raise CheckpointError(
            f"ranks build on different keyframes: {names}", where=f"step {parts[0].step}", todo="the next save is whole"
        )
    return next(iter(bases), None)


def _merge_tensors(parts: Sequence[RankPart]) -> tuple[TensorEntry, ...]:
    merged: dict[str, TensorEntry] = {}
    for part in parts:
        for tensor in part.tensors:
            known = merged.setdefault(tensor.name, tensor)
            if known.shape != tensor.shape:
                raise CheckpointError(
                    f"rank {part.rank} says that {tensor.name} has the shape {tensor.shape}, another says {known.shape}",
                    where=part_key(part.ref, part.rank),
                )
            components = tuple(sorted({*known.components, *tensor.components}))
            merged[tensor.name] = replace(known, components=components)
    return tuple(merged[name] for name in sorted(merged))


def _moved(part: RankPart, first_pack: int, places: dict[str, int]) -> list[FrameEntry]:
    """The part's frames with their indices turned from the part's lists to the manifest's."""
    try:
        return [
            replace(frame, pack=first_pack + frame.pack, tensor=places[part.tensors[frame.tensor].name])
            for frame in part.frames
        ]
    except IndexError as error:
        raise CheckpointError(
            "a frame names a tensor that the part does not have", where=part_key(part.ref, part.rank)
        ) from error
