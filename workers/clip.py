"""Gradient clipping by global norm, as a pure function of the numbers that the vitals already hold."""

from __future__ import annotations


def clip_factor(norm: float, limit: float | None) -> float:
    """The factor that brings a gradient of global norm `norm` down to `limit`; 1.0 if nothing is to be done."""
    if limit is None or norm <= limit:
        return 1.0
    return limit / norm
