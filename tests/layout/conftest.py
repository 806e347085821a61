"""What the layout tests share: the checkout, and the files that make the package."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDERS = ("platform", "workers", "supervisor", "tuning")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def folders(root: Path) -> list[Path]:
    """The four code folders."""
    return [root / name for name in FOLDERS]


@pytest.fixture(scope="session")
def sources(folders: list[Path]) -> list[Path]:
    """Every Python file below the four folders, ignored by git or not."""
    return sorted(path for folder in folders for path in folder.rglob("*.py"))
