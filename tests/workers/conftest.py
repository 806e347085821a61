"""A world of one rank for the tests that need a real engine; it is formed once for each file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.one_rank import world_of_one

from stormsail.platform.messages import World


@pytest.fixture(scope="module")
def one_rank(built_extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The world; this process is its rank 0."""
    with world_of_one(tmp_path_factory.mktemp("home"), built_extensions) as made:
        yield made
