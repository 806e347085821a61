"""Seeding everything that a step may draw from."""

from __future__ import annotations

import random

import numpy as np
import torch

from stormsail.workers.seeding import seed_all


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002 - what user code does


def test_equal_counters_give_equal_draws_from_all_three() -> None:
    seed_all(1, 7, 0)
    first = draws()
    seed_all(1, 7, 0)
    assert draws() == first


def test_each_counter_matters_for_all_three() -> None:
    seen = []
    for counters in [(1, 7, 0), (2, 7, 0), (1, 8, 0), (1, 7, 1), (7, 1, 0)]:
        seed_all(*counters)
        seen.append(draws())
    for kind in zip(*seen, strict=True):
        assert len(set(kind)) == len(seen)
