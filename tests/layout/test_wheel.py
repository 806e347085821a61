"""What is built is what is in the tree: nothing missing, nothing extra, by both ways to a wheel."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

FROM_SRC = {"stormsail/__init__.py", "stormsail/py.typed"}


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in the wheel that is built from the checkout."""
    return wheel_names(build(root, "wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def sdist(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(root, "sdist", folder)) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def test_the_wheel_holds_the_four_folders_and_two_files(root: Path, folders: list[Path], wheel: set[str]) -> None:
    expected = {f"stormsail/{name}" for folder in folders for name in files(folder, root)}
    assert wheel == expected | FROM_SRC


def test_the_sdist_lacks_nothing_that_the_wheel_has(root: Path, folders: list[Path], sdist: Path) -> None:
    for folder in folders:
        assert files(sdist / folder.name, sdist) == files(folder, root)
    assert {"README.md", "LICENSE", "pyproject.toml"} <= {path.name for path in sdist.iterdir()}


def test_a_wheel_by_way_of_the_sdist_is_the_same(sdist: Path, wheel: set[str], tmp_path: Path) -> None:
    assert wheel_names(build(sdist, "wheel", tmp_path)) == wheel


def build(source: Path, target: str, out: Path) -> Path:
    """Build with the backend itself: no network, no environment of its own."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(path for path in out.iterdir() if path.is_file())


def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def files(folder: Path, root: Path) -> set[str]:
    """Everything that belongs into the package, whatever .gitignore thinks of it."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix() for path in found if path.suffix != ".md"}
