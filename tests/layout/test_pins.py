"""The pins that `make setup` uses cover what the package asks for, and agree with it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, str]:
    """Version by canonical name."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.fixture(scope="module")
def asked(root: Path) -> list[Requirement]:
    """What the package and its development extra ask for."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]]


def test_everything_asked_for_is_pinned(pins: dict[str, str], asked: list[Requirement]) -> None:
    missing = [str(requirement) for requirement in asked if canonicalize_name(requirement.name) not in pins]
    assert not missing, "renew constraints.txt; its head says how"


def test_every_pin_lies_in_the_range_asked_for(pins: dict[str, str], asked: list[Requirement]) -> None:
    outside = [
        f"{requirement} is pinned to {pins[canonicalize_name(requirement.name)]}"
        for requirement in asked
        if pins[canonicalize_name(requirement.name)] not in requirement.specifier
    ]
    assert not outside


def test_what_builds_the_extension_is_pinned(pins: dict[str, str]) -> None:
    """DeepSpeed compiles at the first start, with torch's help."""
    assert {"ninja", "setuptools"} <= pins.keys()
