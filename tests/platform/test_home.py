"""One folder of ours on a machine: where it is, and that asking for it creates nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.home import Home


def test_the_environment_chooses_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "mine"))
    assert Home.here().path == tmp_path / "mine"


@pytest.mark.parametrize("unset", [True, False])
def test_without_a_choice_it_lies_in_the_users_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, unset: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if unset:
        monkeypatch.delenv("STORMSAIL_HOME", raising=False)
    else:
        monkeypatch.setenv("STORMSAIL_HOME", "")
    assert Home.here().path == tmp_path / ".stormsail"


def test_a_relative_choice_becomes_absolute_and_a_tilde_is_expanded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("STORMSAIL_HOME", "here")
    assert Home.here().path == tmp_path / "here"
    monkeypatch.setenv("STORMSAIL_HOME", "~/there")
    assert Home.here().path == tmp_path / "me" / "there"


def test_the_places_below_are_apart_and_asking_creates_none(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    places = [home.host, home.store, home.data, home.extensions, home.mlflow_db, home.run("a"), home.run("b")]
    assert len(set(places)) == len(places)
    assert all(home.path in place.parents for place in places)
    assert not home.path.exists()
