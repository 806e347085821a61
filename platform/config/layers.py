"""Lays environment and `--set` over what the file said, and remembers where each value came from (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from stormsail.platform.config.problems import Keys, Place, Problem
from stormsail.platform.config.source import Parsed, parse_yaml
from stormsail.platform.config.vocabulary import in_words

ENVIRONMENT_PREFIX = "STORMSAIL__"
# Sections that may be written as one plain text, and the key that it stands for.
_SHORTHAND: Mapping[str, str] = {"storage": "url"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One value from outside the file.

    Attributes:
        keys: Where it goes.
        parsed: The value, its places and its problems.
        place: What to call its origin.
    """

    keys: Keys
    parsed: Parsed
    place: Place


def environment_settings(environ: Mapping[str, str]) -> list[Setting]:
    """What `STORMSAIL__A__B=value` sets, outer keys before inner ones."""
    return [
        _setting(
            name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"), environ[name], f"environment variable {name}"
        )
        for name in sorted(environ)
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


def override_settings(overrides: Sequence[str]) -> list[Setting]:
    """What `--set a.b=value` sets, in the order given."""
    settings = []
    for text in overrides:
        name, equals, value = text.partition("=")
        source = f"--set {text}"
        if equals:
            settings.append(_setting(name.strip().split("."), value, source))
        else:
            settings.append(_refused((), source, "`a.b=value`", "no `=`"))
    return settings


def _setting(parts: list[str], text: str, source: str) -> Setting:
    keys: Keys = tuple(int(part) if depth and part.isdecimal() else part for depth, part in enumerate(parts))
    if "" in keys:
        return _refused((), source, "a dotted key", "an empty part in it")
    if not text.strip():
        return _refused(
            keys, source, "a value", "nothing", 'write null for "no value", or two quotes for an empty text'
        )
    return Setting(keys, parse_yaml(text, source, at=keys, lines=False), Place(source))


def _refused(keys: Keys, source: str, expected: str, found: str, hint: str = "") -> Setting:
    place = Place(source)
    return Setting(keys, Parsed(None, problems=[Problem.at(place, keys, expected, found, hint)]), place)


class Tree:
    """The values as they are so far, where each came from, and what is wrong.

    Args:
        values: What the file said; changed in place.
        places: Where each key stands.
        problems: What is wrong already.
        root: The file.
    """

    def __init__(
        self, values: dict[str, object], places: dict[Keys, Place], problems: list[Problem], root: Place
    ) -> None:
        self.values = values
        self.places = places
        self.problems = problems
        self.root = root

    def note(self, problems: Iterable[Problem]) -> None:
        """Add problems; of two with one key in one place the first stays, as the second only follows from it."""
        known = {(problem.source, problem.line, problem.key) for problem in self.problems}
        self.problems.extend(
            problem for problem in problems if (problem.source, problem.line, problem.key) not in known
        )

    def put(self, setting: Setting) -> None:
        """Set one value, replacing what was there."""
        if setting.parsed.problems:
            self.problems.extend(setting.parsed.problems)
            return
        holder = self._holder(setting)
        key = setting.keys[-1]
        if isinstance(holder, dict) and not (isinstance(key, int) and len(setting.keys) > 1):
            holder[str(key)] = setting.parsed.value
        elif isinstance(holder, list) and isinstance(key, int) and key < len(holder):
            holder[key] = setting.parsed.value
        else:
            expected = "a list" if isinstance(key, int) else "a mapping"
            found = f"{in_words(holder)} above `{key}`"
            self.problems.append(Problem.at(setting.place, setting.keys, f"{expected} to set it in", found))
            return
        self.places = {keys: place for keys, place in self.places.items() if keys[: len(setting.keys)] != setting.keys}
        self.places.update(setting.parsed.places)

    def fill_sections(self, model: type[BaseModel]) -> None:
        """Give each section its mapping: one that is empty or missing has only defaults."""
        for name, info in model.model_fields.items():
            section = isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
            if section and self.values.get(name) is None and (name in self.values or info.is_required()):
                self.values[name] = {}
            inner = self.values.get(name)
            if section and isinstance(inner, dict) and inner.get("args", ()) is None:
                inner["args"] = {}

    def _holder(self, setting: Setting) -> object:
        """The mapping or list that the value goes into; mappings are made where nothing is."""
        holder: object = self.values
        for depth, key in enumerate(setting.keys[:-1]):
            if isinstance(holder, list) and isinstance(key, int) and key < len(holder):
                holder = holder[key]
            elif isinstance(holder, dict):
                holder = self._open(holder, key, setting.keys[: depth + 1], setting.place)
            else:
                return holder
        return holder

    def _open(self, holder: dict[str, object], key: str | int, keys: Keys, place: Place) -> object:
        inner = holder.get(str(key))
        if inner is None:
            inner = {}
            self.places.setdefault(keys, place)
        elif isinstance(inner, str) and keys[0] in _SHORTHAND and len(keys) == 1:
            inner = {_SHORTHAND[str(key)]: inner}
        holder[str(key)] = inner
        return inner
