"""The reader that the page about checkpoints shows reads what the real writer wrote, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stormsail.platform.checkpoint.collector import collect
from stormsail.platform.checkpoint.commits import load_commit
from stormsail.platform.checkpoint.folding import drop_original, fold
from stormsail.platform.checkpoint.frame_header import Codec, read_header
from stormsail.platform.checkpoint.planes import Method
from stormsail.platform.checkpoint.retention import RetentionPlan
from stormsail.platform.checkpoint.rounding import mantissa_bits, round_words
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.local import LocalStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit, State

PAGE = Path(__file__).parents[3] / "docs" / "checkpoints.md"


@pytest.fixture(scope="module")
def reader() -> dict[str, Any]:
    """What the code on the page defines."""
    (code,) = re.findall(r"<!-- reader:begin -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_reader_on_the_page_reads_a_keyframe_and_what_builds_on_it(
    kit: Kit, reader: dict[str, Any], tmp_path: Path
) -> None:
    store, state = LocalStore(tmp_path / "run"), kit.state(0)
    bases = kit.keyframes(store, state, CheckpointRef(1, 100), 3)
    newer = kit.drift(state, 1)
    kit.save(store, newer, CheckpointRef(1, 110), 3, bases=bases)
    for step, expected in ((100, state), (110, newer)):
        found = reader["read"](tmp_path / "run", 1, step)
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert np.array_equal(found[key].reshape(-1).view(np.uint32), values.view(np.uint32))
            assert (
                found[key].shape
                == {"embed.weight": (7, 5), "layer.0.bias": (3,), "norm": (), "head.weight": (4, 6)}[key[0]]
            )


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert (Codec.PLAIN, Codec.INT_SUB, Method.RAW, Method.ZSTD, Method.LITERALS) == (4, 3, 0, 1, 2)


def test_the_reader_on_the_page_reads_rounded_states(kit: Kit, reader: dict[str, Any], tmp_path: Path) -> None:
    def rounded(state: State) -> State:
        return {
            (name, component): round_words(values.view(np.uint32), mantissa_bits(component)).view(np.float32)
            for (name, component), values in state.items()
        }

    store, state = LocalStore(tmp_path / "run"), rounded(kit.state(0))
    bases = kit.keyframes(store, state, CheckpointRef(1, 100))
    newer = rounded(kit.drift(state, 1))
    kit.save(store, newer, CheckpointRef(1, 110), bases=bases)
    found = reader["read"](tmp_path / "run", 1, 110)
    for key, values in newer.items():
        assert np.array_equal(found[key].reshape(-1).view(np.uint32), values.view(np.uint32))


def test_the_reader_on_the_page_reads_what_was_folded(kit: Kit, reader: dict[str, Any], tmp_path: Path) -> None:
    store, state = LocalStore(tmp_path / "run"), kit.state(0)
    bases = kit.keyframes(store, state, CheckpointRef(1, 100))
    newer = kit.drift(state, 1)
    kit.save(store, newer, CheckpointRef(1, 110), bases=bases)
    fold(store, CheckpointRef(1, 110), time_s=1.0)
    drop_original(store, load_commit(store, CheckpointRef(1, 110)))
    collect(store, RetentionPlan((), (CheckpointRef(1, 100),)))
    found = reader["read"](tmp_path / "run", 1, 110)
    for key, values in newer.items():
        assert np.array_equal(found[key].reshape(-1).view(np.uint32), values.view(np.uint32))


def test_the_reader_on_the_page_reads_what_rows_and_columns_share(
    kit: Kit, reader: dict[str, Any], tmp_path: Path
) -> None:
    shapes = {"wide.weight": (60, 80)}
    random = np.random.default_rng(0)
    scales = np.exp(random.normal(0, 3, (60, 1)) + random.normal(0, 3, (1, 80))).astype(np.float32).reshape(-1)
    state = {key: values * scales for key, values in kit.state(0, shapes).items()}
    store = LocalStore(tmp_path / "run")
    manifest = kit.save(store, state, CheckpointRef(1, 100), 3, shapes=shapes)
    frame = manifest.frames[0]
    assert read_header(store.get(manifest.packs[frame.pack].key)[frame.offset :][: frame.length]).grid is not None
    found = reader["read"](tmp_path / "run", 1, 100)
    for key, values in state.items():
        assert np.array_equal(found[key].reshape(-1).view(np.uint32), values.view(np.uint32))


def test_the_reader_on_the_page_reads_lower_halves_that_lie_together(
    kit: Kit, reader: dict[str, Any], tmp_path: Path
) -> None:
    shapes = {"long.weight": (5000,)}
    store, state = LocalStore(tmp_path / "run"), kit.state(0, shapes)
    bases = kit.keyframes(store, state, CheckpointRef(1, 100), 1, shapes=shapes)
    newer = kit.drift(state, 1, scale=0.1)
    manifest = kit.save(store, newer, CheckpointRef(1, 110), 1, shapes=shapes, bases=bases)
    headers = [
        read_header(store.get(manifest.packs[frame.pack].key)[frame.offset :][: frame.length])
        for frame in manifest.frames
    ]
    assert {(header.codec, header.halves) for header in headers} == {(Codec.PLAIN, True), (Codec.INT_SUB, True)}
    found = reader["read"](tmp_path / "run", 1, 110)
    for key, values in newer.items():
        assert np.array_equal(found[key].view(np.uint32), values.view(np.uint32))
