"""A module that calls itself pure is held to it: the import contract names every one of them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

# "...; pure." or ": pure, ..." or "(pure)" or "... Pure." in the docstring of a module is a claim about it.
CLAIM = re.compile(r"[;:] pure\b|\(pure\)|\. Pure\b")


@pytest.fixture(scope="module")
def contract(root: Path) -> set[str]:
    """Modules below the contract, as paths below the root."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (named,) = [contract["source_modules"] for contract in contracts if contract["name"] == "what decides is pure"]
    return {name.removeprefix("stormsail.").replace(".", "/") + ".py" for name in named}


def test_every_module_that_calls_itself_pure_is_in_the_contract(
    root: Path, sources: list[Path], contract: set[str]
) -> None:
    claims = {path.relative_to(root).as_posix() for path in sources if CLAIM.search(docstring(path))}
    assert claims <= contract, "name the module in pyproject.toml, under the contract 'what decides is pure'"


def test_the_contract_names_what_exists(root: Path, contract: set[str]) -> None:
    assert not sorted(name for name in contract if not (root / name).is_file())


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
