"""A lease counts while its holder lives, and not a moment longer."""

from __future__ import annotations

import pytest

from stormsail.platform.home import Home
from stormsail.supervisor.host.lease import count_leases, hold
from stormsail.supervisor.host.paths import HostPaths


def test_each_holder_counts_until_it_lets_go(home: Home) -> None:
    folder = HostPaths.of(home).leases
    assert count_leases(folder) == 0
    with hold(home):
        with hold(home):
            assert count_leases(folder) == 2
        assert count_leases(folder) == 1
    assert count_leases(folder) == 0
    assert list(folder.iterdir()) == []


def test_a_holder_that_fails_lets_go(home: Home) -> None:
    with pytest.raises(ZeroDivisionError), hold(home):
        _ = 1 / 0
    assert count_leases(HostPaths.of(home).leases) == 0


def test_a_file_that_nobody_locks_is_removed_and_not_counted(home: Home) -> None:
    paths = HostPaths.of(home)
    paths.make_folders()
    (paths.leases / "1-dead.lease").touch()
    assert count_leases(paths.leases) == 0
    assert list(paths.leases.iterdir()) == []
