"""What is normal for the gradient norm of each layer group, so that an incident can name the layers in front. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.workers.detect.beside import Layers

_PACE = 0.02
_TINY = 1e-30
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class LayerLevels:
    """Running means of the logarithm of each group's norm, over steps that were not out of the ordinary.

    Attributes:
        levels: By group.
        steps: Steps that went into them, up to where it no longer matters.
    """

    levels: tuple[float, ...] = ()
    steps: int = 0

    def learn(self, norms: Sequence[float]) -> LayerLevels:
        """The levels with one more ordinary step; begun anew where the groups are others."""
        logs = tuple(math.log(max(norm, _TINY)) for norm in norms)
        if len(logs) != len(self.levels):
            return LayerLevels(logs, 1)
        pace = max(_PACE, 1.0 / (self.steps + 1))
        moved = tuple(level + pace * (log - level) for level, log in zip(self.levels, logs, strict=True))
        return LayerLevels(moved, min(self.steps + 1, 1000))

    def outliers(self, norms: Sequence[float], limits: Layers) -> tuple[tuple[int, float], ...]:
        """Groups whose norm is too far above its level, as (index, ratio), furthest first."""
        if self.steps < limits.least or len(norms) != len(self.levels):
            return ()
        ratios = [
            math.exp(min(math.log(max(norm, _TINY)) - level, 600.0)) if math.isfinite(norm) else math.inf
            for norm, level in zip(norms, self.levels, strict=True)
        ]
        found = [(index, ratio) for index, ratio in enumerate(ratios) if ratio > limits.ratio]
        return tuple(sorted(found, key=lambda item: -item[1])[:_SHOWN])
