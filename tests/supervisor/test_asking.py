"""Finding a run that another command wants to talk to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.run_kit import Staff

from stormsail.platform.errors import NoSuchRunError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace, begin_incarnation
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.asking import find_run

Play = Callable[[Callable[[Staff], None]], RunPlace]


def test_a_run_is_found_with_its_configuration(tmp_path: Path, root: StoreAddress, played: Play) -> None:
    played(lambda staff: staff.steps(0, 3))
    found = find_run(Home(tmp_path), "run", root.url, print)
    assert found.config.name == "run"
    assert found.read.last_step == 4
    assert found.ray_address is None


def test_a_name_without_a_journal_has_not_begun(tmp_path: Path, root: StoreAddress) -> None:
    begin_incarnation(root, "empty")
    with pytest.raises(NoSuchRunError, match="has not begun"):
        find_run(Home(tmp_path), "empty", root.url, print)


def test_a_mistyped_name_gets_the_nearest(tmp_path: Path, root: StoreAddress, played: Play) -> None:
    played(lambda staff: staff.steps(0, 1))
    with pytest.raises(NoSuchRunError, match="did you mean 'run'"):
        find_run(Home(tmp_path), "rum", root.url, print)
