"""What the configuration knows, in words: what a key expects, and which key a mistyped one may have been (pure)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

from stormsail.platform.config.builtin_args import KINDS, builtins_of
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.problems import Keys, dotted
from stormsail.platform.config.section import Section

Schema = dict[str, Any]

_NEAR_HERE = 0.6
_NEAR_ELSEWHERE = 0.76
_SHOWN = 60


@cache
def vocabulary_of(model: type[BaseModel]) -> Vocabulary:
    """The words of a model, read once in a process."""
    return Vocabulary(model)


class Vocabulary:
    """The words of one model, read from its JSON Schema.

    Args:
        model: The section that an input was checked against.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._root: Schema = model.model_json_schema()
        self._definitions: Schema = self._root.get("$defs", {})

    def find(self, location: Sequence[str | int]) -> tuple[Keys, Schema]:
        """The keys and the schema of a place as pydantic names it (a chosen union member is no key)."""
        node = self._plain(self._root)
        keys: list[str | int] = []
        for part in location:
            if "discriminator" in node:
                node = self._plain({"$ref": node["discriminator"]["mapping"][part]})
                continue
            if "anyOf" in node:  # whichever member was tried, the key is the same
                continue
            keys.append(part)
            node = self._child(node, part)
        return tuple(keys), node

    def keys_of(self, node: Schema) -> tuple[str, ...]:
        """The keys that a section has."""
        return tuple(node.get("properties", {}))

    def expectation(self, node: Schema) -> str:
        """What a key expects, with its description."""
        words = self._phrase(node)
        description = node.get("description", "")
        return f"{words} ({description})" if description and "properties" not in node else words

    def choices(self, node: Schema) -> tuple[str, ...]:
        """The texts that a key may hold, where they are few."""
        if "discriminator" in node:
            return tuple(node["discriminator"]["mapping"])
        members = [self._plain(member) for member in node.get("anyOf", ())]
        named = [value for part in (node, *members) for value in part.get("enum", [part.get("const")])]
        return tuple(value for value in named if isinstance(value, str))

    def _child(self, node: Schema, part: str | int) -> Schema:
        if isinstance(part, str):
            return self._plain(node.get("properties", {}).get(part, {}))
        members = node.get("prefixItems", [])
        return self._plain(members[part] if part < len(members) else node.get("items", {}))

    def _plain(self, node: Schema) -> Schema:
        """Follow a reference, keeping what is said beside it."""
        if "$ref" not in node:
            return node
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**self._definitions[node["$ref"].rsplit("/", 1)[1]], **beside}

    def _phrase(self, node: Schema) -> str:
        if "const" in node:
            return f"`{node['const']}`"
        if "anyOf" in node:
            return " or ".join(self._phrase(self._plain(member)) for member in node["anyOf"])
        if self.choices(node):
            listed = ", ".join(f"`{value}`" for value in self.choices(node))
            return f"a mapping with `kind`: one of {listed}" if "discriminator" in node else f"one of {listed}"
        if "prefixItems" in node:
            members = [self._phrase(self._plain(member)) for member in node["prefixItems"]]
            if len(set(members)) == 1:
                return f"a list of {len(members)}, each {members[0]}"
            return f"a list of {len(members)}: {', '.join(members)}"
        words = _TYPES.get(str(node.get("type")), "a value")
        return words + _range(node)


_TYPES: Mapping[str, str] = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "a mapping of keys",
}

_LIMITS: Mapping[str, str] = {
    "minimum": "of at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}


def _range(node: Schema) -> str:
    limits = [words.format(_short(node[name])) for name, words in _LIMITS.items() if name in node]
    return f" {' and '.join(limits)}" if limits else ""


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_words(value: object) -> str:
    """What was found, as a person would say it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
        return f"the text `{shown}`"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "a mapping" if isinstance(value, dict) else f"a {type(value).__name__}"


def nearest(word: str, options: Sequence[str], *, cutoff: float = _NEAR_HERE) -> str:
    """The option most like `word`, or ""."""
    found = difflib.get_close_matches(word.lower(), options, n=1, cutoff=cutoff)
    return found[0] if found else ""


def unknown_key_hint(keys: Keys, here: Sequence[str]) -> str:
    """What a key that does not exist was probably meant to be.

    Args:
        keys: Path of the unknown key.
        here: The keys that its section has.
    """
    section, word = dotted(keys[:-1]), str(keys[-1]).lower().replace("-", "_")
    if word in here:
        return f"did you mean `{word}`? Keys are lower-case, with underscores"
    if dotted(keys) in _paths().values():  # this is another kind of file
        return f"`{dotted(keys)}` is a key of a run's configuration, which `stormsail train` takes"
    homes = tuple(home for home in _homes().get(word, ()) if home != section)
    close = nearest(word, here)
    if homes:
        where = " or ".join(f"section `{home}`" if home else "the top level" for home in homes)
        return f"`{word}` belongs in {where}" + (f"; the nearest key here is `{close}`" if close else "")
    far = _far(word)
    if far and _likeness(word, far) > _likeness(word, close):
        return f"did you mean `{_paths()[far]}`?"
    if close:
        return f"did you mean `{close}`?"
    return f"this version knows here: {', '.join(here)}" if here else "this version takes no keys here"


def _likeness(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, word, other).ratio()


def _far(word: str) -> str:
    """The key of any section that is most like `word`, as a key of `_paths`, or ""."""
    return nearest(word, tuple(_paths()), cutoff=_NEAR_ELSEWHERE)


@cache
def _paths() -> dict[str, str]:
    """Ways to write each key outside its section, and its dotted key: `checkpoint_every_steps` and `every_steps`."""
    paths: dict[str, str] = {}
    for key, homes in _homes().items():
        for home in homes:
            full = f"{home}.{key}".lstrip(".")
            paths.setdefault(full.replace(".", "_"), full)
            paths.setdefault(key, full)
    return paths


@cache
def _homes() -> dict[str, tuple[str, ...]]:
    """Every key, and the sections that have it ("" is the top level)."""
    homes: dict[str, tuple[str, ...]] = {}
    for home, model in _sections():
        for key in model.model_fields:
            homes[key] = (*homes.get(key, ()), home)
    return homes


def _sections() -> list[tuple[str, type[BaseModel]]]:
    found: list[tuple[str, type[BaseModel]]] = [("", RunConfig)]
    for name, info in RunConfig.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            found.append((name, info.annotation))
    for kind in KINDS:
        found.extend((f"{kind}.args", model) for model in builtins_of(kind).values())
    return found
