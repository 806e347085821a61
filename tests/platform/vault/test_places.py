"""Places have an order, and names for people."""

from __future__ import annotations

from stormsail.platform.vault.places import PLACES, spell


def test_the_nearest_comes_first() -> None:
    assert PLACES == ("memory", "vault", "buddy", "store")


def test_places_are_spelt_out() -> None:
    assert spell(["store", "vault"]) == "the node's vault and the store"
    assert spell([]) == ""
