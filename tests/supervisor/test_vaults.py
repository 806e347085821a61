"""Vaults from the supervisor's side, as far as no cluster is needed; tests/cluster/test_vaults.py runs them."""

from __future__ import annotations

import pytest

from stormsail.supervisor.vaults import budget_of, environment


def test_the_budget_is_what_was_configured_or_half_of_what_is_free() -> None:
    assert budget_of(None, 10 << 30) == 5 << 30
    assert budget_of(1.5, 10 << 30) == 3 << 29
    assert budget_of(0.0, 10 << 30) == 0


def test_a_vault_keeps_things_where_its_supervisor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMSAIL_HOME", "/somewhere")
    assert environment() == {"STORMSAIL_HOME": "/somewhere"}
    monkeypatch.delenv("STORMSAIL_HOME")
    assert environment() == {}
