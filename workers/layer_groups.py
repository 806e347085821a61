"""Layer groups: parameters that belong to one layer, found from their names; pure.

`blocks.3.attention.qkv.weight` belongs to `blocks.3`, `embed.weight` to `embed`, `model.norm.weight` to `model.norm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROOT = "root"
"""The group of parameters that the outermost module holds itself."""


def group_of(parameter: str) -> str:
    """The layer group of a parameter: its name up to the first number, or without one the module that holds it."""
    parts = parameter.split(".")
    for index, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: index + 1])
    return ".".join(parts[:-1]) or ROOT


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The groups of a model.

    Attributes:
        names: In the order of the first parameter of each.
        of_parameter: Index of the group of each parameter, in the parameters' order.
    """

    names: tuple[str, ...]
    of_parameter: tuple[int, ...]

    @classmethod
    def of(cls, parameters: Sequence[str]) -> LayerGroups:
        """Group these parameters."""
        groups = [group_of(name) for name in parameters]
        names = tuple(dict.fromkeys(groups))
        index = {name: place for place, name in enumerate(names)}
        return cls(names, tuple(index[group] for group in groups))

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum of one value per parameter over each group, added in the parameters' order."""
        totals = [0.0] * len(self.names)
        for group, value in zip(self.of_parameter, values, strict=True):
            totals[group] += value
        return totals
