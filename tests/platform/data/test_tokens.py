"""Token shards on disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.data.tokens import SPEC_FILE, DataSpec, TokenDataset, write_shards
from stormsail.platform.errors import ConfigError


def _write(folder: Path, count: int = 1000, shard_tokens: int = 300, vocab_size: int = 256) -> DataSpec:
    stream = (np.arange(count) * 7 % vocab_size).astype(np.int64)
    return write_shards(folder, [stream], vocab_size=vocab_size, shard_tokens=shard_tokens, source="a test")


def _temporaries(parent: Path) -> list[Path]:
    return list(parent.glob(".*.tmp"))


@given(st.data())
def test_what_was_written_is_read_back_wherever_it_was_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda s: sum(s) >= 2))
    stream = np.random.default_rng(0).integers(0, 70_000, sum(sizes))
    chunks = np.split(stream, np.cumsum(sizes)[:-1])
    folder = tmp_path_factory.mktemp("shards") / "data"
    write_shards(folder, chunks, vocab_size=70_000, shard_tokens=data.draw(st.integers(1, 50)), source="random")
    dataset = TokenDataset.open(folder)
    length = data.draw(st.integers(1, len(stream) - 1))
    assert dataset.samples(length) == (len(stream) - 1) // length
    for index in range(dataset.samples(length)):
        tokens, targets, mask = dataset.sample(index, length)
        start = index * length
        assert np.array_equal(tokens, stream[start : start + length])
        assert np.array_equal(targets, stream[start + 1 : start + length + 1])
        assert np.array_equal(mask, np.ones(length, np.float32))


def test_a_sample_has_the_types_that_the_model_takes(tmp_path: Path) -> None:
    _write(tmp_path / "data")
    tokens, targets, mask = TokenDataset.open(tmp_path / "data").sample(2, 128)
    assert [str(array.dtype) for array in (tokens, targets, mask)] == ["int64", "int64", "float32"]


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")]
)
def test_the_vocabulary_chooses_the_smallest_type(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    assert _write(tmp_path / "data", vocab_size=vocab_size).dtype == dtype


def test_equal_data_have_equal_digests_and_one_changed_token_another(tmp_path: Path) -> None:
    def digest(name: str, last: int) -> str:
        return write_shards(tmp_path / name, [np.array([1, 2, last])], vocab_size=9, shard_tokens=2, source="x").digest

    assert digest("a", 3) == digest("b", 3) != digest("c", 4)


def test_a_sample_beyond_the_end_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "data")
    dataset = TokenDataset.open(tmp_path / "data")
    with pytest.raises(IndexError, match="sample 7 of 7"):
        dataset.sample(7, 128)


def test_a_missing_shard_is_one_error_that_names_it(tmp_path: Path) -> None:
    _write(tmp_path / "data")
    (tmp_path / "data" / "shard-00001.bin").unlink()
    with pytest.raises(ConfigError, match="shard is missing") as caught:
        TokenDataset.open(tmp_path / "data")
    assert caught.value.where.endswith("shard-00001.bin")
    assert "written again" in caught.value.todo


def test_short_shards_are_one_error_that_counts_them(tmp_path: Path) -> None:
    _write(tmp_path / "data")
    for name in ("shard-00000.bin", "shard-00002.bin"):
        os.truncate(tmp_path / "data" / name, 10)
    with pytest.raises(ConfigError, match=r"10 bytes, expected 300 \(and 1 more of 4 shards"):
        TokenDataset.open(tmp_path / "data")


def test_a_flipped_byte_is_found_by_a_full_check(tmp_path: Path) -> None:
    _write(tmp_path / "data")
    path = tmp_path / "data" / "shard-00003.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(ConfigError, match="bytes have changed"):
        TokenDataset.open(tmp_path / "data").verify()


def test_intact_shards_pass_a_full_check(tmp_path: Path) -> None:
    _write(tmp_path / "data")
    TokenDataset.open(tmp_path / "data").verify()


def test_a_folder_without_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data set here"):
        TokenDataset.open(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: spec | {"format": 2}, "format"),
        (lambda spec: spec | {"extra": 1}, "extra"),
        (lambda spec: spec | {"vocab_size": 99}, "digest does not fit"),
        (lambda spec: "no object", "not a description"),
    ],
    ids=["version", "unknown key", "edited", "no object"],
)
def test_a_spec_that_is_not_ours_is_refused(
    tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    _write(tmp_path / "data")
    path = tmp_path / "data" / SPEC_FILE
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match=message):
        TokenDataset.open(tmp_path / "data")


@pytest.mark.parametrize("bad", [256, -1])
def test_a_token_outside_the_vocabulary_is_refused_and_nothing_is_left(tmp_path: Path, bad: int) -> None:
    with pytest.raises(ConfigError, match=f"token {bad} is outside"):
        write_shards(tmp_path / "data", [np.array([1, bad])], vocab_size=256, shard_tokens=10, source="x")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_stream_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a single token"):
        write_shards(tmp_path / "data", [], vocab_size=256, shard_tokens=10, source="x")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_a_file_gives_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        _write(tmp_path / "file" / "data")


def test_writing_the_same_again_keeps_the_folder(tmp_path: Path) -> None:
    first = _write(tmp_path / "data")
    inode = (tmp_path / "data").stat().st_ino
    assert _write(tmp_path / "data") == first
    assert (tmp_path / "data").stat().st_ino == inode
    assert _temporaries(tmp_path) == []


def test_other_data_in_the_folder_are_never_replaced(tmp_path: Path) -> None:
    _write(tmp_path / "data")
    with pytest.raises(ConfigError, match="already holds other data"):
        _write(tmp_path / "data", count=500)
    assert TokenDataset.open(tmp_path / "data").spec.tokens == 1000


def test_leftovers_of_killed_writers_are_removed_and_live_ones_kept(tmp_path: Path) -> None:
    old, young = tmp_path / ".data.dead.tmp", tmp_path / ".data.live.tmp"
    old.mkdir()
    young.mkdir()
    os.utime(old, (0, 0))
    _write(tmp_path / "data")
    assert _temporaries(tmp_path) == [young]


def _race(folder: Path, gate: multiprocessing.synchronize.Barrier, digests: multiprocessing.Queue[str]) -> None:
    def chunks() -> list[npt.NDArray[np.int64]]:
        gate.wait(100)
        return [np.arange(5000, dtype=np.int64) % 256]

    digests.put(write_shards(folder, chunks(), vocab_size=256, shard_tokens=1000, source="race").digest)


def test_two_processes_that_write_one_folder_at_once_both_succeed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    gate, digests = context.Barrier(2), context.Queue()
    writers = [context.Process(target=_race, args=(tmp_path / "data", gate, digests)) for _ in range(2)]
    for writer in writers:
        writer.start()
    found = {digests.get(timeout=100) for _ in writers}
    for writer in writers:
        writer.join(100)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert found == {TokenDataset.open(tmp_path / "data").spec.digest}
    assert _temporaries(tmp_path) == []


def test_an_open_data_set_travels_as_its_address(tmp_path: Path) -> None:
    _write(tmp_path / "data", count=100_000, shard_tokens=100_000)
    packed = pickle.dumps(TokenDataset.open(tmp_path / "data"))
    assert len(packed) < 1000
    assert pickle.loads(packed).samples(128) == 781
