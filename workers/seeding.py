"""Seeding everything that code in a step may draw from; randomness is a function of counters, never stored state."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(*counters: int) -> None:
    """Seed torch, numpy's global generator and `random` from any number of counters (each >= 0), mixed well."""
    mixed = np.random.SeedSequence(counters).generate_state(2, np.uint64)
    torch.manual_seed(int(mixed[0]))
    np.random.seed(int(mixed[1]) % 2**32)  # noqa: NPY002 - the user's own code may draw from it
    random.seed(int(mixed[1]))
