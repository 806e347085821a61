"""How an attempt ended, as a plain value (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended, as Ray tells it.

    Attributes:
        ok: All workers returned.
        errors: What each failed worker raised or how it died, by worker index; -1 for the group as a whole.
        died: Worker indexes whose process died without a word of its own.
        no_room: The workers were never started, because the room for them was gone.
    """

    ok: bool
    errors: dict[int, str]
    died: tuple[int, ...] = ()
    no_room: bool = False
