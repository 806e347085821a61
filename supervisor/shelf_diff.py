"""What is different between two checkpoints: by digest from the manifests alone, or element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.manifest import CheckpointMeta, Manifest
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.shards import Floats, ShardSpec
from stormsail.platform.storage.store import ObjectStore

_META = ("step", "applied", "tokens", "data_position", "world_size", "threads", "precision", "config_digest")


@dataclass(frozen=True, slots=True)
class ComponentDiff:
    """One component over all tensors that both checkpoints have.

    Attributes:
        component: Its name.
        tensors: How many tensors have it in both.
        differing: Names of those that are not the same in every bit.
        elements: Elements compared; 0 where values were not read.
        changed: Elements with other bits.
        max_abs: Largest absolute difference, NaN if a value is not finite on either side.
        relative_norm: Norm of the difference over the norm of the first.
    """

    component: str
    tensors: int
    differing: tuple[str, ...]
    elements: int = 0
    changed: int = 0
    max_abs: float = 0.0
    relative_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckpointDiff:
    """Everything that is different.

    Attributes:
        same_state: Whether the state is the same in every bit.
        meta: Facts that differ, as (name, first, second).
        only_first: `tensor/component` that only the first has, or that has another shape in the second.
        only_second: The same the other way round.
        components: One entry for each component.
    """

    same_state: bool
    meta: tuple[tuple[str, str, str], ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    components: tuple[ComponentDiff, ...]


def diff_manifests(first: Manifest, second: Manifest) -> CheckpointDiff:
    """Compare by digest; reads nothing."""
    left, right = _digests(first), _digests(second)
    both = sorted(left.keys() & right.keys(), key=lambda spec: (spec.component, spec.name))
    return CheckpointDiff(
        same_state=left == right,
        meta=tuple(_meta_diff(first.meta, second.meta)),
        only_first=tuple(sorted(spec.label for spec in left.keys() - right.keys())),
        only_second=tuple(sorted(spec.label for spec in right.keys() - left.keys())),
        components=tuple(
            ComponentDiff(
                component,
                sum(spec.component == component for spec in both),
                tuple(spec.name for spec in both if spec.component == component and left[spec] != right[spec]),
            )
            for component in sorted({spec.component for spec in both})
        ),
    )


def diff_values(first: tuple[ObjectStore, Manifest], second: tuple[ObjectStore, Manifest]) -> CheckpointDiff:
    """Compare by digest, and read those tensors that differ, one at a time.

    Raises:
        CheckpointError: One of the checkpoints is damaged.
        StorageError: The store failed.
    """
    found = diff_manifests(first[1], second[1])
    specs = {(spec.name, spec.component): spec for spec in _digests(first[1])}
    return CheckpointDiff(
        found.same_state,
        found.meta,
        found.only_first,
        found.only_second,
        tuple(_measure(part, first, second, specs) for part in found.components),
    )


def _digests(manifest: Manifest) -> dict[ShardSpec, Digest]:
    """The digest of each whole tensor and component, under its name and shape."""
    whole = {
        (index, component): ShardSpec(tensor.name, component, tensor.shape, 0, math.prod(tensor.shape))
        for index, tensor in enumerate(manifest.tensors)
        for component in tensor.components
    }
    sums = dict.fromkeys(whole.values(), Digest())
    for frame in manifest.frames:
        sums[whole[frame.tensor, frame.component]] += Digest.from_hex(frame.digest)
    return sums


def _meta_diff(first: CheckpointMeta, second: CheckpointMeta) -> Iterator[tuple[str, str, str]]:
    for name in _META:
        left, right = getattr(first, name), getattr(second, name)
        if left != right:
            yield name, str(left), str(right)


def _measure(
    part: ComponentDiff,
    first: tuple[ObjectStore, Manifest],
    second: tuple[ObjectStore, Manifest],
    specs: dict[tuple[str, str], ShardSpec],
) -> ComponentDiff:
    elements = changed = 0
    squares = base_squares = largest = 0.0
    for name in part.differing:
        spec = specs[name, part.component]
        left, right = (_read(store, manifest, spec) for store, manifest in (first, second))
        elements += left.size
        changed += int(np.count_nonzero(left.view(np.uint32) != right.view(np.uint32)))
        with np.errstate(invalid="ignore", over="ignore"):
            step = right.astype(np.float64) - left
        largest = float(np.maximum(largest, np.abs(step).max(initial=0.0)))  # np.maximum keeps a NaN
        squares += float(step @ step)
        base_squares += float(left.astype(np.float64) @ left)
    norm = math.sqrt(squares / base_squares) if base_squares > 0 else 0.0
    return ComponentDiff(part.component, part.tensors, part.differing, elements, changed, largest, norm)


def _read(store: ObjectStore, manifest: Manifest, spec: ShardSpec) -> Floats:
    (shard,) = read_shards(store, manifest, [spec])
    return shard.values.view(np.float32)


def to_json(found: CheckpointDiff) -> dict[str, Any]:
    """For `--json`."""
    return {
        "same_state": found.same_state,
        "meta": [{"name": name, "first": left, "second": right} for name, left, right in found.meta],
        "only_first": list(found.only_first),
        "only_second": list(found.only_second),
        "components": list(found.components),
    }


def render(found: CheckpointDiff) -> str:
    """For people."""
    lines = ["the state is the same in every bit" if found.same_state else "the state is not the same"]
    lines += [f"  {name}: {left} / {right}" for name, left, right in found.meta]
    lines += [f"  only in the first: {label}" for label in found.only_first]
    lines += [f"  only in the second: {label}" for label in found.only_second]
    for part in found.components:
        lines.append(f"  {part.component}: {len(part.differing)} of {part.tensors} tensors differ{_numbers(part)}")
    return "\n".join(lines)


def _numbers(part: ComponentDiff) -> str:
    if not part.elements:
        return ""
    return (
        f"; of their {part.elements} elements {part.changed} ({part.changed / part.elements:.1%}), "
        f"largest difference {part.max_abs:.3g}, relative norm {part.relative_norm:.3g}"
    )
