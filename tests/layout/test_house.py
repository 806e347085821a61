"""The four folders are namespace packages under one name, and hide nothing of Python's own.

Why it matters: the checkout's root is on `sys.path` under `python -m pytest` and in every Ray worker
that gets the checkout as its working directory. With `platform/__init__.py` there, `import platform`
would find ours, and neither pytest nor Ray would start.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
import platform, uuid
import stormsail.platform.errors
print(platform.__file__)
print(platform.system())
print(stormsail.platform.errors.__file__)
"""


def test_no_folder_has_an_init_file(root: Path, folders: list[Path]) -> None:
    found = [path for folder in [*folders, root / "tests"] for path in folder.rglob("__init__.py")]
    assert not found, "an __init__.py here breaks `import platform` or pytest; CONTRIBUTING.md says why"


def test_the_standard_platform_module_wins_with_the_root_first_on_the_path(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(root)], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    standard, system, ours = done.stdout.split()
    assert root not in Path(standard).parents
    assert system
    assert Path(ours).resolve() == root / "platform" / "errors.py"


def test_each_link_resolves_to_its_folder(root: Path, folders: list[Path]) -> None:
    for folder in folders:
        link = root / "src" / "stormsail" / folder.name
        assert link.is_symlink(), f"{link} is not a link: was it checked out with symlinks off?"
        assert link.resolve() == folder


def test_src_holds_the_links_and_two_files_and_nothing_else(root: Path, folders: list[Path]) -> None:
    names = {path.name for path in (root / "src" / "stormsail").iterdir()} - {"__pycache__"}
    assert names == {folder.name for folder in folders} | {"__init__.py", "py.typed"}


def test_no_module_or_folder_has_the_name_of_a_standard_module(root: Path, sources: list[Path]) -> None:
    standard = sys.stdlib_module_names
    modules = [path for path in sources if path.stem in standard]
    inner = {path.parent for path in sources if len(path.relative_to(root).parts) > 2}
    assert not modules
    assert not [path for path in inner if path.name in standard]


def test_every_module_says_what_it_is_for(sources: list[Path]) -> None:
    silent = [path for path in sources if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert not silent


def test_no_wait_is_measured_by_the_clock_of_the_wall(sources: list[Path]) -> None:
    """It may jump, forward or back: what is compared with a limit comes from the monotonic clock, but a file's age."""
    found = [
        f"{path}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and any(map(_reads_the_wall_clock, ast.walk(node)))
        if "st_mtime" not in ast.unparse(node)
    ]
    assert not found


def _reads_the_wall_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.time", "datetime.now")
