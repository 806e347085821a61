"""Short enough for sockets, and for this user alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.platform.home import Home
from stormsail.supervisor.host.paths import HostPaths


def test_the_socket_is_in_the_home_where_its_path_is_short() -> None:
    paths = HostPaths.of(Home(Path("/home/ada/.stormsail")))
    assert paths.control == Path("/home/ada/.stormsail/host/control.sock")


def test_every_socket_path_fits_the_kernel_however_long_the_home() -> None:
    home = Home(Path("/" + "very-long/" * 40))
    paths = HostPaths.of(home)
    session = "session_2026-11-29_18-35-09_517821_4194304/sockets/plasma_store"
    assert len(os.fsencode(paths.control)) <= 107
    assert len(os.fsencode(paths.ray_temp / session)) <= 107


def test_two_homes_share_nothing() -> None:
    one, two = (HostPaths.of(Home(Path("/" + "long/" * 40 + name))) for name in ("one", "two"))
    assert one.control != two.control
    assert one.ray_temp != two.ray_temp


def test_folders_are_made_for_this_user_alone_and_opened_ones_are_closed(home: Home) -> None:
    paths = HostPaths.of(home)
    paths.folder.mkdir(parents=True, mode=0o755)
    paths.folder.chmod(0o755)
    paths.make_folders()
    paths.make_folders()
    for folder in (paths.folder, paths.leases, paths.short, paths.short.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_in_the_place_of_the_private_folder_is_refused(home: Home, tmp_path: Path) -> None:
    paths = HostPaths.of(home)
    paths.make_folders()
    paths.short.rmdir()
    paths.short.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="folder of yours"):
        paths.make_folders()
    paths.short.unlink()
