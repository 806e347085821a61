"""Files that any reader of the format takes: whole or not there, with the header that says what is in them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormsail.platform.checkpoint.safetensors_format import (
    SafetensorsWriter,
    TensorPlan,
    file_names,
    header_of,
    index_of,
    split_files,
)
from stormsail.platform.errors import ConfigError, InternalError

PLANS = [TensorPlan("a", "F32", (2, 3)), TensorPlan("b", "BF16", (3,)), TensorPlan("c", "F32", ())]


def parsed(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data, by the published description of the format."""
    body = path.read_bytes()
    length = int.from_bytes(body[:8], "little")
    return json.loads(body[8 : 8 + length]), body[8 + length :]


def write(path: Path) -> None:
    with SafetensorsWriter(path, PLANS, {"format": "pt"}) as writer:
        writer.add("a", np.arange(6, dtype=np.float32))
        writer.add("b", np.array([1, 2, 3], np.uint16))
        writer.add("c", np.array(7, np.float32))
        writer.finish()


def test_the_header_names_every_tensor_and_its_place(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors")
    header, data = parsed(tmp_path / "x.safetensors")
    assert header == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [24, 30]},
        "c": {"dtype": "F32", "shape": [], "data_offsets": [30, 34]},
    }
    assert np.frombuffer(data[:24], np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.frombuffer(data[24:30], np.uint16).tolist() == [1, 2, 3]
    assert np.frombuffer(data[30:], np.float32).tolist() == [7]


def test_the_data_begin_at_a_multiple_of_eight() -> None:
    for length in range(1, 20):
        assert len(header_of([TensorPlan("n" * length, "F32", (1,))], {})) % 8 == 0


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with SafetensorsWriter(path, PLANS[2:], {}) as writer:
        writer.add("c", np.array(7, np.float32))
        written = writer.finish()
    body = path.read_bytes()
    assert (written.name, written.size_bytes) == ("x.safetensors", len(body))
    assert written.sha256 == hashlib.sha256(body).hexdigest()


def test_what_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with SafetensorsWriter(tmp_path / "x.safetensors", PLANS, {}) as writer:
        writer.add("a", np.zeros(6, np.float32))
        with pytest.raises(InternalError, match="2 tensors are missing"):
            writer.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "size"), [("b", 6), ("a", 5)])
def test_tensors_come_as_planned(tmp_path: Path, name: str, size: int) -> None:
    with (
        SafetensorsWriter(tmp_path / "x.safetensors", PLANS, {}) as writer,
        pytest.raises(InternalError, match="not the tensor that comes next"),
    ):
        writer.add(name, np.zeros(size, np.float32))


def test_a_name_is_there_once() -> None:
    with pytest.raises(InternalError, match="twice"):
        header_of([PLANS[0], PLANS[0]], {})
    with pytest.raises(InternalError, match="twice"):
        header_of([TensorPlan("__metadata__", "F32", (1,))], {})


def test_a_folder_that_is_not_there_is_the_users_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        SafetensorsWriter(tmp_path / "nowhere" / "x.safetensors", PLANS, {})


def test_files_are_filled_up_to_the_limit_in_order() -> None:
    assert split_files(PLANS, 1000) == [PLANS]
    assert split_files(PLANS, 30) == [PLANS[:2], PLANS[2:]]
    assert split_files(PLANS, 1) == [[plan] for plan in PLANS]
    assert split_files([], 1) == []


def test_names_and_index_are_those_that_libraries_look_for() -> None:
    assert file_names(1) == ["model.safetensors"]
    names = file_names(2)
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert json.loads(index_of([PLANS[:2], PLANS[2:]], names)) == {
        "metadata": {"total_size": 34},
        "weight_map": {"a": names[0], "b": names[0], "c": names[1]},
    }


def test_a_full_disk_leaves_nothing_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors.partial").symlink_to("/dev/full")
    plan = TensorPlan("a", "F32", (100_000,))

    def write_all() -> None:
        with SafetensorsWriter(tmp_path / "x.safetensors", [plan], {}) as writer:
            writer.add("a", np.zeros(100_000, np.float32))
            writer.finish()

    with pytest.raises(ConfigError, match="No space left"):
        write_all()
    assert list(tmp_path.iterdir()) == []
