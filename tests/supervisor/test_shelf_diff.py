"""Two checkpoints are compared by digest without reading them, and by value where that is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from stormsail.platform.checkpoint.manifest import CheckpointMeta, Manifest
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.shelf_diff import diff_manifests, diff_values, render, to_json

Tensors = dict[tuple[str, str], NDArray[np.float32]]
Save = Callable[..., tuple[ObjectStore, Manifest]]


def tensors() -> Tensors:
    return {
        ("a", "master"): np.array([1, 2, 3], np.float32),
        ("a", "exp_avg"): np.array([4, 5, 6], np.float32),
        ("b", "master"): np.array([7, 8], np.float32),
    }


@pytest.fixture
def save() -> Save:
    """Saves tensors in a store of their own, over one or more ranks."""

    def make(values: Tensors, step: int = 10, world_size: int = 1) -> tuple[ObjectStore, Manifest]:
        store = MemoryStore()
        ensure_format(store)
        parts = []
        for rank in range(world_size):
            shards = []
            for (name, component), array in values.items():
                start, stop = rank * array.size // world_size, (rank + 1) * array.size // world_size
                spec = ShardSpec(name, component, (array.size,), start, stop - start)
                shards.append(Shard(spec, array[start:stop]))
            parts.append(
                write_part(
                    store,
                    generation=1,
                    step=step,
                    rank=rank,
                    world_size=world_size,
                    shards=shards,
                    cancelled=lambda: False,
                )
            )
        meta = CheckpointMeta(
            step=step,
            applied=step,
            tokens=0,
            data_position=0,
            world_size=world_size,
            threads=1,
            precision="bf16",
            config_digest="c" * 64,
        )
        return store, commit(store, parts, meta, parent=None, time_s=1.0)

    return make


def test_the_same_state_on_another_world_is_the_same(save: Save) -> None:
    found = diff_manifests(save(tensors())[1], save(tensors(), world_size=2)[1])
    assert found.same_state
    assert found.meta == (("world_size", "1", "2"),)
    assert [(part.component, part.tensors, part.differing) for part in found.components] == [
        ("exp_avg", 1, ()),
        ("master", 2, ()),
    ]


def test_one_changed_bit_is_found_and_measured(save: Save) -> None:
    changed = tensors()
    changed["b", "master"][1] = 8.5
    found = diff_values(save(tensors()), save(changed, step=20))
    assert not found.same_state
    assert ("step", "10", "20") in found.meta
    master = found.components[1]
    assert (master.differing, master.elements, master.changed, master.max_abs) == (("b",), 2, 1, 0.5)
    assert master.relative_norm == pytest.approx(0.5 / math.sqrt(49 + 64))
    assert found.components[0].differing == ()


def test_other_tensors_and_shapes_are_named_on_their_side(save: Save) -> None:
    other = tensors()
    del other["a", "exp_avg"]
    other["b", "master"] = np.zeros(3, np.float32)
    found = diff_manifests(save(tensors())[1], save(other)[1])
    assert (found.only_first, found.only_second) == (("a/exp_avg", "b/master"), ("b/master",))


def test_signed_zeros_differ_in_bits_but_not_in_value(save: Save) -> None:
    plus, minus = {("a", "master"): np.zeros(2, np.float32)}, {("a", "master"): -np.zeros(2, np.float32)}
    (part,) = diff_values(save(plus), save(minus)).components
    assert (part.changed, part.max_abs, part.relative_norm) == (2, 0.0, 0.0)


def test_a_nan_is_not_hidden(save: Save) -> None:
    broken = tensors()
    broken["a", "master"][0] = np.nan
    (_, master) = diff_values(save(tensors()), save(broken)).components
    assert math.isnan(master.max_abs)


def test_it_is_told_in_lines_and_as_json(save: Save) -> None:
    changed = tensors()
    changed["a", "master"][0] = 0
    found = diff_values(save(tensors()), save(changed))
    assert render(found).splitlines() == [
        "the state is not the same",
        "  exp_avg: 0 of 1 tensors differ",
        "  master: 1 of 2 tensors differ; of their 3 elements 1 (33.3%), largest difference 1, relative norm 0.267",
    ]
    assert to_json(found)["same_state"] is False
