"""Which layers are in front."""

from __future__ import annotations

import math

import pytest

from stormsail.workers.detect.beside import Layers
from stormsail.workers.detect.layers import LayerLevels


def calm(steps: int) -> LayerLevels:
    levels = LayerLevels()
    for step in range(steps):
        wave = 1.0 + 0.1 * math.sin(step)
        levels = levels.learn([0.2 * wave, 1.0 * wave, 0.5 * wave])
    return levels


def test_groups_beyond_twice_their_level_are_named_furthest_first() -> None:
    found = calm(100).outliers([0.6, 1.1, 5.0], Layers())
    assert [index for index, _ in found] == [2, 0]
    assert found[0][1] == pytest.approx(10.0, rel=0.1)


def test_what_is_not_finite_is_furthest() -> None:
    assert calm(100).outliers([0.6, math.inf, 0.5], Layers())[0] == (1, math.inf)


def test_too_little_is_known_at_first() -> None:
    assert calm(10).outliers([100.0, 100.0, 100.0], Layers()) == ()


def test_other_groups_are_begun_anew() -> None:
    assert calm(100).learn([1.0, 2.0]).steps == 1
    assert calm(100).outliers([9.0, 9.0], Layers()) == ()


def test_how_far_is_a_setting() -> None:
    assert calm(100).outliers([0.6, 1.1, 5.0], Layers(ratio=4.0)) == calm(100).outliers([0.2, 1.0, 5.0], Layers())
    assert calm(10).outliers([100.0, 100.0, 100.0], Layers(least=5))
