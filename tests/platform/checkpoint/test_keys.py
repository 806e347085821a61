"""Keys carry generation and step, and are read back strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.keys import commit_key, manifest_key, owner_of, pack_key, pack_rank, part_key
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.keys import is_key

NUMBER = st.integers(0, 10**14)


@given(NUMBER, NUMBER, st.integers(0, 10**6), st.integers(0, 10**6))
def test_every_key_names_its_owner(generation: int, step: int, rank: int, number: int) -> None:
    ref = CheckpointRef(generation, step)
    keys = [commit_key(ref), manifest_key(ref), part_key(ref, rank), pack_key(ref, rank, number)]
    assert all(is_key(key) and owner_of(key) == ref for key in keys)
    assert pack_rank(keys[-1]) == rank


@pytest.mark.parametrize(
    "key",
    [
        "format.json",
        "commits/1/10",
        "commits/00000001/000000000010/x",
        "commits/000000001/000000000010",
        "parts/00000001/000000000010",
        "parts/00000001/000000000010/x",
        "packs/zz/00000001-000000000010-00000-00000",
        "packs/00000001-000000000010-00000-00000",
        "journal/00000001",
    ],
)
def test_a_foreign_key_has_no_owner(key: str) -> None:
    assert owner_of(key) is None
    assert pack_rank(key) is None


def test_packs_are_spread_over_prefixes() -> None:
    prefixes = {pack_key(CheckpointRef(1, step), 0, 0).split("/")[1] for step in range(1000)}
    assert len(prefixes) > 200
