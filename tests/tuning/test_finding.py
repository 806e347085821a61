"""Finding a sweep by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.config.infrastructure import StorageSection
from stormsail.platform.errors import NoSuchRunError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace
from stormsail.supervisor import places
from stormsail.tuning.finding import find_sweep
from stormsail.tuning.sweep import remembered_as


def test_it_is_found_where_it_is_said_or_remembered_to_be(place: RunPlace, tmp_path: Path) -> None:
    home, url = Home(tmp_path / "home"), f"file://{tmp_path}/store"
    assert find_sweep(home, "small", url, print) == place
    places.remember(home, remembered_as("small"), StorageSection(url=url), None)
    assert find_sweep(home, "small@1", None, print) == place


def test_one_that_is_not_there_is_an_error_that_names_those_that_are(place: RunPlace, tmp_path: Path) -> None:
    with pytest.raises(NoSuchRunError, match="sweeps here: small"):
        find_sweep(Home(tmp_path / "home"), "large", f"file://{tmp_path}/store", print)
