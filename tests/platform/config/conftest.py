"""What the configuration tests share: loading a text as if it were a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stormsail.platform.config.load import ConfigProblems, load_config
from stormsail.platform.config.model import RunConfig

GOOD = "name: run-1\ntrain: {steps: 200}\n"

Load = Callable[..., RunConfig]
Problems = Callable[..., dict[str, str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a YAML text with overrides and environment."""

    def load_text(text: str = GOOD, *overrides: str, environ: Mapping[str, str] | None = None) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, overrides=overrides, environ=environ or {})

    return load_text


@pytest.fixture
def problems(load: Load) -> Problems:
    """The problems of a YAML text, as text by dotted key; the file's folder is left out."""

    def find(text: str = GOOD, *overrides: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        with pytest.raises(ConfigProblems) as caught:
            load(text, *overrides, environ=environ)
        return {problem.key: short(str(problem)) for problem in caught.value.problems}

    return find


def short(text: str) -> str:
    """The text without the folder of the file that it begins with."""
    head, _, rest = text.partition("run.yaml")
    return f"run.yaml{rest}" if head.startswith("/") and rest else text
