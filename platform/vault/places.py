"""The places that a state can lie in, nearest first, and their names for people; pure."""

from __future__ import annotations

from collections.abc import Iterable

MEMORY = "memory"
VAULT = "vault"
BUDDY = "buddy"
STORE = "store"

NAMES = {MEMORY: "memory", VAULT: "the node's vault", BUDDY: "another node's vault", STORE: "the store"}
PLACES = tuple(NAMES)


def spell(places: Iterable[str]) -> str:
    """Some places in words, in their order."""
    return " and ".join(NAMES.get(place, place) for place in places)
