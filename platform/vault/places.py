"""The places that a state can lie in, nearest first, and their names for people; pure."""

from __future__ import annotations

from collections.abc import Iterable

MEMORY = "memory"
VAULT = "vault"
BUDDY = "buddy"
STORE = "store"

NAMES = {MEMORY: "memory", VAULT: "the node's vault", BUDDY: "another node's vault", STORE: "the store"}
PLACES = tuple(NAMES)


def in_order(places: Iterable[str]) -> tuple[str, ...]:
    """Some places, the nearest first: what is journalled keeps no order."""
    found = set(places)
    return tuple(place for place in PLACES if place in found)


def spell(places: Iterable[str]) -> str:
    """Some places in words, the nearest first."""
    return " and ".join(NAMES[place] for place in in_order(places))
