"""What an alert is, how alerts are put together, and how a message reads; pure.

Every alert says what happened, what was done about it, what a person should do, and where to look. Alerts of the same
key become one paragraph with a count: two hundred anomalies in a minute are one thing to a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

_MOST_PARAGRAPHS = 10
_LONGEST = 600


class Level(StrEnum):
    """How much a person is needed, least first."""

    INFO = "info"
    WARNING = "warning"
    PAGE = "page"

    @property
    def rank(self) -> int:
        """0 to 2."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that a person should know.

    Attributes:
        key: Alerts of the same key are told together.
        level: How much a person is needed.
        run: The run's name.
        step: Step that it concerns, or None.
        time_s: When, in seconds since the epoch.
        title: In a few words.
        happened: What happened.
        done: What Stormsail did about it.
        todo: What a person should do.
        look: The command or link to look with.
        about: Numbers of the journal's events that it tells of.
        count: How many alerts it stands for.
        first_step: Step of the first of them.
    """

    key: str
    level: Level
    run: str
    step: int | None
    time_s: float
    title: str
    happened: str
    done: str
    todo: str
    look: str
    about: tuple[int, ...] = ()
    count: int = 1
    first_step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Alert:
        """Back from `to_json`."""
        return cls(**{**value, "level": Level(value["level"]), "about": tuple(value["about"])})


def join(waiting: Sequence[Alert], new: Alert) -> tuple[Alert, ...]:
    """The waiting alerts with one more, which is put together with one of the same run and key."""
    known = next((alert for alert in waiting if (alert.run, alert.key) == (new.run, new.key)), None)
    if known is None:
        return (*waiting, new)
    first = known.step if known.first_step is None else known.first_step
    both = replace(
        new,
        level=max(known.level, new.level, key=lambda level: level.rank),
        about=(*known.about, *new.about),
        count=known.count + new.count,
        first_step=first,
    )
    return tuple(both if alert is known else alert for alert in waiting)


def subject(alerts: Sequence[Alert]) -> str:
    """One line for all of them."""
    ordered = _ordered(alerts)
    first = ordered[0]
    total = sum(alert.count for alert in ordered)
    more = f" (and {total - 1} more)" if total > 1 else ""
    return _sendable(f"[{first.level}] {first.run}: {first.title}{more}")


def body(alerts: Sequence[Alert]) -> str:
    """All of them as plain text, the gravest first."""
    ordered = _ordered(alerts)
    parts = [_paragraph(alert) for alert in ordered[:_MOST_PARAGRAPHS]]
    left = ordered[_MOST_PARAGRAPHS:]
    if left:
        parts.append(f"and {len(left)} more: {'; '.join(alert.title for alert in left)}"[:_LONGEST])
    return _sendable("\n\n".join(parts))


def _ordered(alerts: Sequence[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda alert: (-alert.level.rank, alert.time_s))


def _paragraph(alert: Alert) -> str:
    where = "" if alert.step is None else f" at step {alert.step}"
    if alert.count > 1:
        since = "" if alert.first_step is None else f" since step {alert.first_step}"
        where = f"{where} ({alert.count} times{since})"
    lines = [
        f"[{alert.level}] {alert.run}{where}: {alert.title}",
        f"What happened: {_short(alert.happened)}",
        f"What was done: {_short(alert.done)}",
        f"What to do: {_short(alert.todo)}",
        f"Look: {alert.look}",
    ]
    return "\n".join(lines)


def _sendable(text: str) -> str:
    """The text without halves of characters, which no channel can send; an error's words may hold some."""
    return text.encode("utf-8", "replace").decode()


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 4]} ..."
