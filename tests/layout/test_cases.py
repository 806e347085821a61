"""The page of cases names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_test_that_the_page_names_exists(root: Path) -> None:
    named = NAMED.findall((root / "docs" / "cases.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    gone = [f"{file}::{name}" for file, name in named if not is_there(root / file, name)]
    assert not gone


def test_every_case_is_held_by_a_test(root: Path) -> None:
    rows = re.findall(r"^\| \d+ .*$", (root / "docs" / "cases.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows
    assert all(NAMED.search(row) for row in rows)


def is_there(file: Path, name: str) -> bool:
    return file.is_file() and re.search(rf"^ *def {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE) is not None
