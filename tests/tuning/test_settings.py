"""The keys of a sweep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from stormsail.tuning.settings import LrSection, SweepConfig

Make = Callable[..., SweepConfig]


def test_the_learning_rates_ascend_and_are_there_once() -> None:
    assert LrSection(centre=0.1, factors=(4.0, 1.0, 1.0)).grid() == (0.1, 0.4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [1, 1]}, "twice"),
        ({"proxies": [{"name": "a", "steps": 9}, {"name": "a", "steps": 9}]}, "same name"),
        (
            {"proxies": [{"name": "a", "steps": 9, "d_model": 64}, {"name": "b", "steps": 9, "d_model": 32}]},
            "from the narrowest to the widest",
        ),
        ({"trials": {"kind": "supervised"}, "space": {"clip": ["p90"]}}, "percentiles"),
        ({"trials": {"kind": "supervised"}, "search": {"early_stop": "asha"}}, "ended by its ladder"),
        ({"trials": {"kind": "supervised", "gpus": 1.0}}, "cluster.accelerator"),
        ({"trials": {"time_limit_s": 0.0}}, "greater than 0"),
        ({"control": {"lr_factor": 2.0}}, "greater than or equal to 8"),
        ({"space": {"clip": ["on"]}}, "clip"),
        ({"space": {"beta2": [1.0]}}, "less than 1"),
        ({"colour": "red"}, "colour"),
        ({"search": {"method": "optuna", "cells": 12}}, "`rest: grid`, `sobol` or `optuna`"),
    ],
)
def test_what_makes_no_sense_is_refused(make_sweep: Make, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make_sweep(**changes)


def test_early_stopping_is_for_bare_trials_unless_it_is_off(make_sweep: Make) -> None:
    assert make_sweep().stops_early
    assert not make_sweep(search={"early_stop": "off"}).stops_early
    assert not make_sweep(trials={"kind": "supervised"}).stops_early


def test_what_decides_on_no_result_may_change_between_two_starts(make_sweep: Make) -> None:
    first = make_sweep()
    assert first.measures_like(make_sweep(trials={"time_limit_s": 9.0, "max_concurrent": 1, "max_retries": 0}))
    assert not first.measures_like(make_sweep(trials={"gpus": 1.0}))
    assert not first.measures_like(make_sweep(seeds=[1]))
