"""When a store counts as away, and when as back (pure)."""

from __future__ import annotations

from dataclasses import dataclass

# Shorter gaps are every store's daily life: retries bridge them, and nobody need know.
PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class Outage:
    """How the store stands.

    Attributes:
        since_s: Since when something has waited to be stored, or None.
        told: Whether it was said that it is away.
    """

    since_s: float | None = None
    told: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """Something to say: `store.away` or `store.back`, and for how long it has been, or was, away."""

    kind: str
    for_s: float


def observe(known: Outage, unsent: int, now_s: float) -> tuple[Outage, News | None]:
    """Take note of how much is waiting after a try to send it.

    Args:
        known: What earlier calls returned.
        unsent: Events and rows that the store has not taken.
        now_s: The time, by any steady clock.
    """
    if not unsent:
        back = News("store.back", now_s - known.since_s) if known.told and known.since_s is not None else None
        return Outage(), back
    since_s = now_s if known.since_s is None else known.since_s
    if not known.told and now_s - since_s > PATIENCE_S:
        return Outage(since_s, told=True), News("store.away", now_s - since_s)
    return Outage(since_s, known.told), None
