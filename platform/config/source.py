"""YAML text to plain values, with the line of every key and without YAML's surprises (pure).

Numbers are those of YAML 1.2 (`3e-4` is one, `on` is text). Refused, each with its line: duplicate keys,
NaN and infinity, keys that are not text, merge keys, tags, and a value that contains itself. Dates stay text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from stormsail.platform.config.problems import Keys, Place, Problem

_TAG = "tag:yaml.org,2002:"
_TEXT = {f"{_TAG}{name}" for name in ("str", "timestamp", "value")}
_OTHER = {f"{_TAG}{name}" for name in ("int", "float", "bool", "null")}
_VERSION = re.compile(r"^%YAML\s+(\S+)", re.MULTILINE)
# A configuration has some hundred values; aliases of aliases can make billions out of a page.
_MAX_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one text said.

    Attributes:
        value: Nested dict, list and scalars, or None for an empty text.
        places: Where each key stands, by its path; the root has the empty path.
        problems: What the text itself does wrong.
    """

    value: object
    places: dict[Keys, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def parse_yaml(text: str, source: str, *, at: Keys = (), lines: bool = True) -> Parsed:
    """Read one YAML document.

    Args:
        text: The document.
        source: Its name in messages.
        at: Path below which its values belong.
        lines: Whether line numbers mean anything to the reader.
    """
    directive = _VERSION.search(text)
    if directive is not None and directive.group(1) != "1.2":
        line = text.count("\n", 0, directive.start()) + 1
        place = Place(source, line if lines else None)
        return Parsed(None, problems=[Problem.at(place, at, "YAML 1.2", f"`{directive.group()}`", "remove that line")])
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
    except YAMLError as error:
        return Parsed(None, problems=[_syntax_problem(error, source, at, lines=lines)])
    if node is None:
        return Parsed(None, {at: Place(source)})
    reader = _Reader(yaml, source, lines=lines)
    value = reader.read(node, at, ())
    return Parsed(value, reader.places, reader.problems)


def _syntax_problem(error: YAMLError, source: str, at: Keys, *, lines: bool) -> Problem:
    if not isinstance(error, MarkedYAMLError):
        return Problem.at(Place(source), at, "YAML text", "a character that YAML does not allow")
    mark = error.problem_mark or error.context_mark
    place = Place(source, mark.line + 1 if mark is not None and lines else None)
    words = ", ".join(part for part in (error.context, error.problem) if part)
    hint = ""
    if "'\\t'" in words:
        hint = "indent with spaces, not tabs"
    elif "another document" in words:
        hint = "one file holds one run: remove the `---`"
    elif "mapping values are not allowed" in words:
        hint = "put text that contains `: ` in quotes"
    return Problem.at(place, at, "YAML", f"a syntax error ({words})", hint)


class _Reader:
    """Walks the composed nodes once, noting places and problems."""

    def __init__(self, yaml: YAML, source: str, *, lines: bool) -> None:
        self._yaml = yaml
        self._source = source
        self._lines = lines
        self._seen = 0
        self.places: dict[Keys, Place] = {}
        self.problems: list[Problem] = []

    def read(self, node: Node, keys: Keys, parents: tuple[int, ...]) -> object:
        self._seen += 1
        self.places.setdefault(keys, self._place(node))
        if id(node) in parents:
            self._refuse(node, keys, "a value", "an alias of a value that contains it")
            return None
        if self._seen > _MAX_VALUES:
            if self._seen == _MAX_VALUES + 1:
                self._refuse(node, keys, f"at most {_MAX_VALUES} values", "more", "is this a configuration?")
            return None
        inner = (*parents, id(node))
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, keys, inner)
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.read(child, (*keys, index), inner) for index, child in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._scalar(node, keys)
        self._refuse(node, keys, "a plain value", f"the tag {node.tag}", "remove the tag")
        return None

    def _place(self, node: Node) -> Place:
        return Place(self._source, node.start_mark.line + 1 if self._lines else None)

    def _refuse(self, node: Node, keys: Keys, expected: str, found: str, hint: str = "") -> None:
        self.problems.append(Problem.at(self._place(node), keys, expected, found, hint))

    def _mapping(self, node: MappingNode, keys: Keys, parents: tuple[int, ...]) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, keys)
            if key is None:
                continue
            path = (*keys, key)
            if key in values:
                first = self.places[path].line
                before = f" in line {first}" if first is not None else ""
                self._refuse(key_node, path, "each key once", f"the key again; it stands{before} already")
                continue
            self.places[path] = self._place(key_node)
            values[key] = self.read(value_node, path, parents)
        return values

    def _key(self, node: Node, keys: Keys) -> str | None:
        if node.tag == f"{_TAG}merge":
            self._refuse(node, keys, "a key", "the merge key <<", "write the keys out; aliases of whole values work")
            return None
        if not isinstance(node, ScalarNode) or node.tag not in _TEXT:
            shown = f"`{node.value}`" if isinstance(node, ScalarNode) else "a list or mapping as a key"
            self._refuse(node, keys, "a key that is text", shown, "put it in quotes if it is meant")
            return None
        return str(node.value)

    def _scalar(self, node: ScalarNode, keys: Keys) -> object:
        if node.tag in _TEXT:
            return str(node.value)
        if node.tag not in _OTHER:
            self._refuse(node, keys, "a plain value", f"the tag {node.tag}", "remove the tag")
            return None
        try:
            value: object = self._yaml.constructor.construct_object(node)
        except (YAMLError, ValueError):
            self._refuse(node, keys, "a plain value", f"`{node.value}`")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self._refuse(node, keys, "a finite number", f"`{node.value}`")
        return value
