"""Reads a sweep's YAML, and the target that it names; all problems told at once, each with its line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from stormsail.platform.config.explain import explain
from stormsail.platform.config.load import load_config
from stormsail.platform.config.problems import ConfigProblems, Place
from stormsail.platform.config.source import parse_yaml
from stormsail.platform.errors import ConfigError
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.sweep import Request


def load_sweep(path: Path, *, environ: Mapping[str, str], fresh: bool = False, take_over: bool = False) -> Request:
    """Read a sweep and its target.

    Args:
        path: The sweep's YAML.
        environ: The environment; `STORMSAIL__...` is laid over the target, as for `train`.
        fresh: Begin anew, whatever is there.
        take_over: Take the sweep from a driver whose lease has expired.

    Raises:
        ConfigError: A file cannot be read.
        ConfigProblems: Everything that is wrong with one of the two.
    """
    sweep = _read(path)
    target_file = path.parent / sweep.target
    if not target_file.is_file():
        raise ConfigError(
            f"there is no file {target_file}",
            where=f"{path}: target",
            todo="target names the YAML of the large run, relative to the sweep's own file",
        )
    target = load_config(target_file, environ=environ)
    return Request(sweep, target, target_file, path.parent, fresh=fresh, take_over=take_over)


def _read(path: Path) -> SweepConfig:
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError("there is no such file", where=source, todo="examples/sweep-small.yaml is one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read: {error}", where=source) from error
    parsed = parse_yaml(text, source)
    if parsed.problems:
        raise ConfigProblems.of(parsed.problems, where=source)
    if not isinstance(parsed.value, dict):
        raise ConfigError("expected a mapping of keys", where=source, todo="examples/sweep-small.yaml is one")
    try:
        return SweepConfig.model_validate(parsed.value)
    except ValidationError as error:
        problems = explain(error, SweepConfig, places=parsed.places, default=Place(source))
        raise ConfigProblems.of(problems, where=source) from error
