"""What is wrong with a configuration: one value for each problem, and the error that carries them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stormsail.platform.errors import ConfigError

Keys = tuple[str | int, ...]


def dotted(keys: Keys) -> str:
    """`("drill", "faults", 0, "step")` as a person writes it after `--set`: `drill.faults.0.step`."""
    return ".".join(str(key) for key in keys)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value came from.

    Attributes:
        source: File, `environment variable NAME`, or `--set TEXT`.
        line: Line in the file, from 1; None where there are no lines.
    """

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to change.

    Attributes:
        source: File, `environment variable NAME`, or `--set TEXT`.
        line: Line in the file, from 1; None where there are no lines.
        key: Dotted key, or "" for the file as a whole.
        expected: What would be right.
        found: What is there.
        hint: The nearest right thing, or "".
    """

    source: str
    line: int | None
    key: str
    expected: str
    found: str
    hint: str = ""

    @classmethod
    def at(cls, place: Place, keys: Keys, expected: str, found: str, hint: str = "") -> Problem:
        """A problem of the value under `keys`."""
        return cls(place.source, place.line, dotted(keys), expected, found, hint)

    def __str__(self) -> str:
        parts = [str(Place(self.source, self.line))]
        if self.key:
            parts.append(self.key)
        head = ": ".join([*parts, f"expected {self.expected}, found {self.found}"])
        return f"{head}; {self.hint}" if self.hint else head


class ConfigProblems(ConfigError):  # noqa: N818 - it is their plural that matters
    """Everything that is wrong with a configuration, at once.

    Attributes:
        problems: In the order of the file, then environment, then `--set`.
    """

    def __init__(self, what: str, *, where: str = "", todo: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(what, where=where, todo=todo)
        self.problems = problems

    @classmethod
    def of(cls, problems: Iterable[Problem], *, where: str, todo: str = "") -> ConfigProblems:
        """The error for these problems in this file."""
        found = tuple(problems)
        count = "one problem" if len(found) == 1 else f"{len(found)} problems"
        return cls(f"{count} in the configuration", where=where, todo=todo, problems=found)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {problem}" for problem in self.problems)])
