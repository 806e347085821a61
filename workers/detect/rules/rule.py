"""What every rule is: a name, thresholds with units, and a pure step from state and row to state and finding. Pure.

A rule is an immutable value; its state is a separate immutable value of bounded size that goes through JSON and back,
so that it can be part of a checkpoint. `Running` holds the two together for those who want an object to feed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar, Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from stormsail.platform.errors import CheckpointError
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row

S = TypeVar("S")

_LONG = re.compile(r"\d{7,}\.\d+|\d{13,}")  # a loss of 1e308 in a reason; whole numbers below are steps


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number that a rule compares with.

    Attributes:
        name: The rule's field.
        value: What it is set to.
        unit: Its unit.
        meaning: What happens beyond it.
    """

    name: str
    value: float
    unit: str
    meaning: str


def limit(value: float, unit: str, meaning: str) -> float:
    """A threshold of a rule: a dataclass field that knows its unit and its meaning."""
    found: float = field(default=value, metadata={"unit": unit, "meaning": meaning})
    return found


def count(value: int, unit: str, meaning: str) -> int:
    """The same for a whole number."""
    found: int = field(default=value, metadata={"unit": unit, "meaning": meaning})
    return found


class Rule(ABC, Generic[S]):
    """A detector over the rows of one curve.

    Attributes:
        name: As used on the command line and in alarms.
        kind: What it looks for.
        level: The highest level that it speaks at.
        unit: Unit of a finding's severity.
        source: Where the rule comes from.
        state_type: Its state; built without arguments it is the one before the first row.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    level: ClassVar[Level] = Level.INCIDENT
    unit: ClassVar[str]
    source: ClassVar[str]
    state_type: ClassVar[type[object]]

    def start(self) -> S:
        """The state before the first row."""
        return cast("S", self.state_type())

    def observe(self, state: S, row: Row) -> tuple[S, Finding | None]:
        """Judge one row and learn from it; rows come in the order of the log."""
        return self._observe(state, row)

    @abstractmethod
    def _observe(self, state: S, row: Row) -> tuple[S, Finding | None]:
        """What each rule does with a row."""

    def thresholds(self) -> tuple[Threshold, ...]:
        """Every number that the rule compares with, with its unit."""
        return tuple(
            Threshold(part.name, getattr(self, part.name), part.metadata["unit"], part.metadata["meaning"])
            for part in fields(self)  # type: ignore[arg-type]  # each rule is a dataclass
        )

    def dump(self, state: S) -> object:
        """The state as plain JSON values."""
        return dump_state(state)

    def load(self, value: object) -> S:
        """Back from `dump`. Raises `CheckpointError` if this is no state of this rule."""
        try:
            return cast("S", _adapter(type(self.start())).validate_python(value))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join([self.name, *(str(part) for part in first["loc"])])
            raise CheckpointError(
                f"the saved state of this rule cannot be read: {first['msg']}", where=where
            ) from error

    def say(
        self,
        severity: float,
        reason: str,
        level: Level | None = None,
        *,
        onset: int | None = None,
        normal: float | None = None,
    ) -> Finding:
        """A finding of this rule, at its own level unless told otherwise."""
        return Finding(level or self.level, self.kind, severity, _LONG.sub(_shortened, reason), onset, normal)


class Running(Generic[S]):
    """A rule with its state in one place; one thread at a time.

    Attributes:
        rule: The rule.
        state: What it remembers now.
    """

    def __init__(self, rule: Rule[S]) -> None:
        self.rule = rule
        self.state = rule.start()

    def observe(self, row: Row) -> Finding | None:
        """Judge one row and learn from it."""
        self.state, finding = self.rule.observe(self.state, row)
        return finding

    def dump(self) -> object:
        """The state as plain JSON values."""
        return self.rule.dump(self.state)

    def load(self, value: object) -> None:
        """Go back to a dumped state. Raises `CheckpointError`."""
        self.state = self.rule.load(value)


def _shortened(figure: re.Match[str]) -> str:
    return f"{float(figure[0]):.4g}"


def dump_state(state: object) -> object:
    """A rule's state as plain JSON values."""
    return _adapter(type(state)).dump_python(state, mode="json")


def _adapter(kind: type) -> TypeAdapter[object]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


_ADAPTERS: dict[type, TypeAdapter[object]] = {}
