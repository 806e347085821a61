"""The built-in data sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from stormsail.platform.config.training import DataSection
from stormsail.platform.data.source import DataSource, HoldsOut, ShardSource, stdlib_source, tokens_source
from stormsail.platform.data.tokens import TokenDataset, write_shards
from stormsail.platform.errors import ConfigError


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shards(tmp_path / "data", [np.arange(1001) % 256], vocab_size=256, shard_tokens=400, source="x")
    return tmp_path / "data"


def test_a_folder_of_shards_is_a_source(shards: Path) -> None:
    section = DataSection(factory="builtin:tokens", args={"path": str(shards)}, sequence_tokens=100)
    source = tokens_source(section)
    assert isinstance(source, DataSource)
    assert source.samples() == 10
    assert source.sample(3)[0].tolist() == (np.arange(300, 400) % 256).tolist()


def test_held_out_samples_are_not_trained_on(shards: Path) -> None:
    source = ShardSource(TokenDataset.open(shards), 100, holdout=0.2)
    assert source.samples() == 8
    with pytest.raises(IndexError, match="sample 8 of 8"):
        source.sample(8)


def test_they_are_a_source_of_their_own_and_nothing_is_left_out(shards: Path) -> None:
    source = ShardSource(TokenDataset.open(shards), 100, holdout=0.2)
    assert isinstance(source, HoldsOut)
    held_out = source.held_out()
    assert isinstance(held_out, DataSource)
    assert held_out.samples() == 2
    assert held_out.sample(1)[0].tolist() == (np.arange(900, 1000) % 256).tolist()
    with pytest.raises(IndexError, match="held-out sample 2 of 2"):
        held_out.sample(2)


def test_asking_for_them_does_not_change_what_the_run_reads(shards: Path) -> None:
    source = ShardSource(TokenDataset.open(shards), 100, holdout=0.2)
    before = source.digest
    held_out = source.held_out()
    assert held_out is not None
    assert held_out.digest != before == source.digest


def test_where_nothing_is_held_out_there_is_no_such_source(shards: Path) -> None:
    assert ShardSource(TokenDataset.open(shards), 100).held_out() is None
    assert ShardSource(TokenDataset.open(shards), 1000, holdout=0.0).held_out() is None


def test_a_share_of_any_folder_can_be_held_out(shards: Path) -> None:
    args = {"path": str(shards), "holdout": 0.5}
    held_out = tokens_source(DataSection(factory="builtin:tokens", args=args, sequence_tokens=100)).held_out()
    assert held_out is not None
    assert held_out.samples() == 5


def test_the_digest_follows_whatever_changes_a_sample(shards: Path) -> None:
    dataset = TokenDataset.open(shards)
    digests = {ShardSource(dataset, 100).digest, ShardSource(dataset, 50).digest, ShardSource(dataset, 100, 0.5).digest}
    assert len(digests) == 3


def test_too_few_tokens_for_one_sample_are_one_clear_error(shards: Path) -> None:
    with pytest.raises(ConfigError, match="too few for one sample"):
        ShardSource(TokenDataset.open(shards), 2000)


def test_where_all_is_held_out_less_of_it_is_the_cure(shards: Path) -> None:
    with pytest.raises(ConfigError, match=r"too few .* besides a holdout of 0\.99") as caught:
        ShardSource(TokenDataset.open(shards), 100, holdout=0.99)
    assert caught.value.todo == "Lower data.args.holdout."


@pytest.mark.slow
def test_the_standard_library_is_written_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path))
    section = DataSection(args={"max_bytes": 100_000, "holdout": 0.1}, sequence_tokens=64)
    source = stdlib_source(section)
    assert source.samples() == int((99_999 // 64) * 0.9)
    assert stdlib_source(section).digest == source.digest
    assert [path.name for path in (tmp_path / "data").iterdir()] == [source.dataset.folder.name]


def test_a_relative_folder_is_refused() -> None:
    with pytest.raises(ValidationError, match="path"):
        tokens_source(DataSection(factory="builtin:tokens", args={"path": "data"}))
