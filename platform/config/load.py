"""Reads a run's configuration: defaults < file < environment < `--set`, with all problems told at once.

`STORMSAIL__TRAIN__STEPS=200` and `--set train.steps=200` both set the key `train.steps`; their values are
YAML, so lists and mappings work too. What is set replaces what was there, mappings included.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from stormsail.platform.config.builtin_args import (
    KINDS,
    PREFIX,
    Kind,
    builtin_args,
    builtins_of,
    with_builtin_defaults,
)
from stormsail.platform.config.explain import explain, place_of
from stormsail.platform.config.layers import Tree, environment_settings, override_settings
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.problems import ConfigProblems, Keys, Place, Problem
from stormsail.platform.config.source import parse_yaml
from stormsail.platform.config.vocabulary import in_words, nearest
from stormsail.platform.errors import ConfigError

__all__ = ["ConfigProblems", "Problem", "load_config"]

_MAX_BYTES = 1 << 20
_FUNCTION = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_DOTTED = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+")


def load_config(path: Path, *, overrides: Sequence[str] = (), environ: Mapping[str, str]) -> RunConfig:
    """Read and check a configuration. The args of built-in factories are written out in full.

    Args:
        path: A YAML file.
        overrides: `a.b=c` texts, as given to `--set`; later ones win.
        environ: The environment; only `STORMSAIL__...` is read.

    Raises:
        ConfigError: The file cannot be read, or holds no mapping.
        ConfigProblems: Everything that is wrong with what was read.
    """
    tree = _read_file(path)
    for setting in [*environment_settings(environ), *override_settings(overrides)]:
        tree.put(setting)
    config = _check(tree)
    if config is None:
        raise ConfigProblems.of(_in_order(tree), where=str(path))
    return with_builtin_defaults(config)


def _read_file(path: Path) -> Tree:
    source = str(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            "there is no such file",
            where=source,
            todo=f"`stormsail init {source}` writes a configuration to start from",
        ) from None
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", where=source) from error
    if len(raw) > _MAX_BYTES:
        raise ConfigError(f"this is no configuration: it has {len(raw)} bytes, above {_MAX_BYTES}", where=source)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            "the file is not UTF-8 text", where=f"{source}:{line}", todo="save it in the encoding UTF-8"
        ) from None
    parsed = parse_yaml(text, source)
    if parsed.problems and not isinstance(parsed.value, dict):
        raise ConfigProblems.of(parsed.problems, where=source)
    if parsed.value is None:
        raise ConfigError("the file is empty", where=source, todo="`stormsail init` writes one to start from")
    if not isinstance(parsed.value, dict):
        raise ConfigError(f"expected a mapping of keys, found {in_words(parsed.value)}", where=source)
    return Tree(parsed.value, parsed.places, parsed.problems, Place(source))


def _in_order(tree: Tree) -> list[Problem]:
    """Problems of the file by line, then of the environment, then of `--set`."""
    return sorted(
        tree.problems,
        key=lambda problem: (problem.source != tree.root.source, problem.source.startswith("--set"), problem.line or 0),
    )


def _check(tree: Tree) -> RunConfig | None:
    """The configuration, or None with everything wrong noted in the tree."""
    tree.fill_sections(RunConfig)
    config = None
    try:
        config = RunConfig.model_validate(tree.values)
    except ValidationError as error:
        tree.note(explain(error, RunConfig, places=tree.places, default=tree.root))
    for kind in KINDS:
        tree.note(_factory_problems(kind, tree))
    if tree.problems and config is None:
        tree.note(_contradictions_of_the_rest(tree))
    return None if tree.problems else config


def _factory_problems(kind: Kind, tree: Tree) -> list[Problem]:
    section = tree.values.get(kind, {})
    if not isinstance(section, dict):
        return []
    default = RunConfig.model_fields[kind].get_default(call_default_factory=True).factory
    factory, args, keys = section.get("factory", default), section.get("args", {}), (kind, "args")
    if not isinstance(factory, str) or not isinstance(args, dict):
        return []
    model = builtin_args(kind, factory)
    if not factory.startswith(PREFIX) or model is None:
        return _shape_problems(kind, factory, tree)
    try:
        model.model_validate(args)
    except ValidationError as error:
        return explain(error, model, at=keys, places=tree.places, default=tree.root)
    return []


def _shape_problems(kind: Kind, factory: str, tree: Tree) -> list[Problem]:
    if _FUNCTION.match(factory) and not factory.startswith(PREFIX):
        return []
    known = [f"{PREFIX}{name}" for name in builtins_of(kind)]
    close = nearest(factory, known)
    keys: Keys = (kind, "factory")
    expected = f"{' or '.join(f'`{name}`' for name in known)}, or `module:function`"
    hint = f"did you mean `{close}`?" if close else ""
    return [Problem.at(place_of(keys, tree.places, tree.root), keys, expected, in_words(factory), hint)]


def _contradictions_of_the_rest(tree: Tree) -> list[Problem]:
    """Cross-field problems among the keys that are right by themselves: pydantic looks for them only when all are."""
    wrong = {problem.key for problem in tree.problems}
    values = copy.deepcopy(tree.values)
    for key in wrong:
        _drop(values, key.split("."))
    values.setdefault("name", "unnamed")
    for section in ("train",):
        values.setdefault(section, {})
    try:
        RunConfig.model_validate(values)
    except ValidationError as error:
        found = explain(error, RunConfig, places=tree.places, default=tree.root)
        return [problem for problem in found if "contradiction" in problem.found and not _mentions(problem, wrong)]
    return []


def _drop(values: dict[str, object], parts: list[str]) -> None:
    section = values.get(parts[0])
    if len(parts) == 1 or not isinstance(section, dict):
        values.pop(parts[0], None)
    else:
        section.pop(parts[1], None)


def _mentions(problem: Problem, wrong: set[str]) -> bool:
    return bool(wrong & {problem.key, *_DOTTED.findall(problem.found)})
