"""pydantic's errors in plain words, each with its place and the nearest right thing (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from stormsail.platform.config.problems import Keys, Place, Problem
from stormsail.platform.config.vocabulary import Schema, Vocabulary, in_words, nearest, unknown_key_hint, vocabulary_of

_KEY = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")
_REFERENCE = "where the secret is kept: `env:NAME` or `file:/path`"
_SWITCH_WORDS = ("on", "off", "yes", "no", "y", "n", "true", "false")


def explain(
    error: ValidationError, model: type[BaseModel], *, at: Keys = (), places: Mapping[Keys, Place], default: Place
) -> list[Problem]:
    """Say what `error` says.

    Args:
        error: Raised by `model`.
        model: The section that the values were checked against.
        at: Where that section lies in the whole.
        places: Where each key stands.
        default: What to name where nothing closer is known.
    """
    explainer = _Explainer(vocabulary_of(model), at, places, default)
    found = [problem for item in error.errors(include_url=False) for problem in explainer.problems(dict(item))]
    return list(dict.fromkeys(found))  # each member of a union has its own error, about the same key


def place_of(keys: Keys, places: Mapping[Keys, Place], default: Place) -> Place:
    """Where a key stands, or the nearest of its parents that stands anywhere."""
    for end in range(len(keys), -1, -1):
        if keys[:end] in places:
            return places[keys[:end]]
    return default


class _Explainer:
    """One model's words, and where its values stand."""

    def __init__(self, words: Vocabulary, at: Keys, places: Mapping[Keys, Place], default: Place) -> None:
        self._words = words
        self._at = at
        self._places = places
        self._default = default

    def problems(self, item: Mapping[str, Any]) -> Iterator[Problem]:
        kind, location = item["type"], item["loc"]
        if kind == "value_error":
            yield from self._contradictions(str(item["ctx"]["error"]), self._words.find(location)[0])
        elif kind == "extra_forbidden":
            yield self._unknown_key(location)
        elif kind == "missing":
            yield self._missing(location)
        elif kind.startswith("union_tag"):
            yield self._wrong_kind(location, item["input"])
        else:
            keys, node = self._words.find(location)
            if _is_secret(node):
                yield self._problem(keys, _REFERENCE, "something else, which is not shown: it may be the secret itself")
                return
            yield self._problem(
                keys, self._words.expectation(node), in_words(item["input"]), self._hint(node, item["input"])
            )

    def _problem(self, keys: Keys, expected: str, found: str, hint: str = "") -> Problem:
        path = (*self._at, *keys)
        return Problem.at(place_of(path, self._places, self._default), path, expected, found, hint)

    def _contradictions(self, message: str, section: Keys) -> Iterator[Problem]:
        for line in message.splitlines():
            named = _KEY.match(line)
            keys = tuple(int(part) if part.isdigit() else part for part in named.group().split(".")) if named else ()
            yield self._problem((*section, *keys), "settings that fit together", f"a contradiction: {line}")

    def _unknown_key(self, location: tuple[str | int, ...]) -> Problem:
        keys, _ = self._words.find(location)
        _, section = self._words.find(location[:-1])
        path = (*self._at, *keys)
        where = f"a key of `{'.'.join(map(str, path[:-1]))}`" if path[:-1] else "a top-level key"
        hint = unknown_key_hint(path, self._words.keys_of(section))
        return self._problem(keys, where, f"the unknown key `{path[-1]}`", hint)

    def _missing(self, location: tuple[str | int, ...]) -> Problem:
        if isinstance(location[-1], int):  # a fixed-length list that is too short
            keys, node = self._words.find(location[:-1])
            return self._problem(keys, self._words.expectation(node), "a shorter list")
        keys, node = self._words.find(location)
        return self._problem(keys, self._words.expectation(node), "nothing: the key is missing")

    def _wrong_kind(self, location: tuple[str | int, ...], value: object) -> Problem:
        keys, node = self._words.find(location)
        choices = self._words.choices(node)
        given = value.get("kind") if isinstance(value, dict) else None
        expected = f"one of {', '.join(f'`{choice}`' for choice in choices)}"
        found = "nothing: the key is missing" if given is None else in_words(given)
        close = nearest(given, choices) if isinstance(given, str) else ""
        return self._problem((*keys, "kind"), expected, found, f"did you mean `{close}`?" if close else "")

    def _hint(self, node: Schema, value: object) -> str:
        members = [member for member in (node, *node.get("anyOf", ())) if "const" not in member]
        types = {member.get("type") for member in members}
        if isinstance(value, str):
            return self._hint_for_text(node, types, value)
        if "string" in types and isinstance(value, int | float):
            return "put it in quotes if it is meant as text"
        return ""

    def _hint_for_text(self, node: Schema, types: set[Any], value: str) -> str:
        if "boolean" in types and value.lower() in _SWITCH_WORDS:
            return "YAML 1.2 knows only true and false, unquoted"
        if types & {"integer", "number"} and _is_number(value):
            return "remove the quotes: this is text"
        close = nearest(value, self._words.choices(node))
        if close:
            return f"did you mean `{close}`?"
        if "pattern" in node:
            slug = _slug(value)
            return f"`{slug}` would do" if re.fullmatch(node["pattern"], slug) else ""
        return ""


def _is_secret(node: Schema) -> bool:
    return any(member.get("x-secret") for member in (node, *node.get("anyOf", ())))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63]
