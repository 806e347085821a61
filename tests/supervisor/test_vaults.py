"""Vaults from the supervisor's side, as far as no cluster is needed; tests/cluster/test_vaults.py runs them."""

from __future__ import annotations

from stormsail.supervisor.vaults import budget_of, own_environment


def test_the_budget_is_what_was_configured_or_half_of_what_is_free() -> None:
    assert budget_of(None, 10 << 30) == 5 << 30
    assert budget_of(1.5, 10 << 30) == 3 << 29
    assert budget_of(0.0, 10 << 30) == 0


def test_only_what_ray_does_not_hold_already_makes_an_environment_of_its_own() -> None:
    assert own_environment({"STORMSAIL_HOME": "/somewhere"}) == {"env_vars": {"STORMSAIL_HOME": "/somewhere"}}
    assert own_environment({}) is None
