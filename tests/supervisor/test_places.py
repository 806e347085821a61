"""Finding a run by its name: what this machine remembers, and what a person says instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stormsail.platform.config.infrastructure import StorageSection
from stormsail.platform.errors import ConfigError, NoSuchRunError
from stormsail.platform.home import Home
from stormsail.platform.runs import begin_incarnation
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.places import locate, recall, remember, root_address


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def ignore(_text: str) -> None:
    """Nobody is told."""


def test_a_folder_is_its_own_address(home: Home, tmp_path: Path) -> None:
    storage = StorageSection(url=f"file://{tmp_path}/store")
    assert root_address(storage, home, ignore).url == storage.url


def test_what_is_remembered_is_recalled_whole(home: Home) -> None:
    storage = StorageSection(url="s3://bucket/runs", endpoint="http://here:9000", timeout_s=3.0)
    remember(home, "run", storage, "ray://there:10001")
    assert recall(home, "run") == (storage, "ray://there:10001")


def test_the_newest_memory_counts_and_leaves_no_half_written_file(home: Home) -> None:
    for url in ("s3://old/x", "s3://new/x"):
        remember(home, "run", StorageSection(url=url), None)
    found = recall(home, "run")
    assert found is not None
    assert found[0].url == "s3://new/x"
    assert [path.name for path in home.run("run").iterdir()] == ["place.json"]


def test_no_secret_is_remembered(home: Home) -> None:
    remember(home, "run", StorageSection(url="s3://bucket/x", profile="me"), None)
    noted = json.loads((home.run("run") / "place.json").read_text())
    assert noted["storage"].keys() == StorageSection.model_fields.keys()


def test_an_unknown_run_is_not_remembered(home: Home) -> None:
    assert recall(home, "run") is None


def test_a_run_is_found_where_it_was_remembered(home: Home, root: StoreAddress) -> None:
    made = begin_incarnation(root, "run")
    remember(home, "run", StorageSection(url=root.url), None)
    assert locate(home, "run", None, ignore) == made
    assert locate(home, "run@1", None, ignore) == made


def test_a_person_who_says_where_is_believed(home: Home, root: StoreAddress, tmp_path: Path) -> None:
    made = begin_incarnation(root, "run")
    remember(home, "run", StorageSection(url=f"file://{tmp_path}/elsewhere"), None)
    assert locate(home, "run", root.url, ignore) == made


def test_a_run_that_is_not_there_is_an_error_that_says_where_it_was_looked_for(home: Home, root: StoreAddress) -> None:
    with pytest.raises(NoSuchRunError) as caught:
        locate(home, "run", root.url, ignore)
    assert root.url in str(caught.value)


def test_what_can_be_no_name_is_refused_before_anything_is_opened(home: Home) -> None:
    with pytest.raises(ConfigError, match="is not a run name"):
        locate(home, "../etc", None, ignore)
