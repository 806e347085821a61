"""Clipping by global norm."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from stormsail.workers.clip import clip_factor


def test_a_gradient_below_the_limit_is_left_alone() -> None:
    assert clip_factor(0.5, 1.0) == 1.0


def test_without_a_limit_nothing_is_clipped() -> None:
    assert clip_factor(1e9, None) == 1.0


@given(st.floats(1e-6, 1e12), st.floats(1e-3, 1e3))
def test_the_clipped_norm_never_exceeds_the_limit(norm: float, limit: float) -> None:
    assert norm * clip_factor(norm, limit) <= limit * (1 + 1e-12) or norm <= limit
    assert math.isfinite(clip_factor(norm, limit))
