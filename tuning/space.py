"""The points of a sweep and the trials that measure them: grid or Sobol; pure.

A *cell* is what a sweep chooses between: second decay rate, clip and warm-up. It is never judged by one learning
rate: each cell is trained over the whole grid of learning rates, on each proxy, with each seed. A *trial* is one of those.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from stormsail.tuning.settings import Clip, SpaceSection, SweepConfig


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What a sweep chooses between.

    Attributes:
        beta2: AdamW's second decay rate.
        clip: `off`, a norm as text (`1`), or `pNN`: the NN-th percentile of the norms seen so far.
        warmup: Warm-up as a share of the proxy's steps.
    """

    beta2: float
    clip: str
    warmup: float

    @property
    def clip_norm(self) -> float | None:
        """The fixed limit, or None where there is none."""
        return None if self.clip == "off" or self.clip.startswith("p") else float(self.clip)

    @property
    def clip_percentile(self) -> float | None:
        """The percentile in [0, 100] that the limit follows, or None."""
        return float(self.clip[1:]) if self.clip.startswith("p") else None

    def __str__(self) -> str:
        return f"beta2 {self.beta2:g}, clip {self.clip}, warm-up {self.warmup:.3g}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One training of one proxy.

    Attributes:
        proxy: The proxy's name.
        cell: The settings that are judged.
        lr: Peak learning rate.
        seed: Of weights and data order.
        control: Whether this belongs to the known-bad control, which has to fail.
    """

    proxy: str
    cell: Cell
    lr: float
    seed: int
    control: bool = False

    @property
    def id(self) -> str:
        """Names the trial in the store; equal trials have equal names, whatever the sweep's order."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.proxy}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def all_cells(space: SpaceSection) -> list[Cell]:
    """The grid: every combination, in the order of the lists."""
    return [
        Cell(beta2, clip_text(clip), warmup)
        for beta2, clip, warmup in itertools.product(space.beta2, space.clip, space.warmup)
    ]


def sobol_cells(space: SpaceSection, count: int) -> list[Cell]:
    """`count` different cells of the grid, spread evenly by a Sobol sequence; all of them if there are fewer.

    The sequence is the unscrambled one, so that equal sweeps choose equal cells.
    """
    axes: tuple[Sequence[object], ...] = (space.beta2, space.clip, space.warmup)
    grid = all_cells(space)
    chosen: dict[Cell, None] = {}
    for point in sobol(len(axes)):
        if len(chosen) >= min(count, len(grid)):
            return list(chosen)
        index = 0
        for share, axis in zip(point, axes, strict=True):
            index = index * len(axis) + int(share * len(axis))
        chosen.setdefault(grid[index])
    raise AssertionError  # pragma: no cover - the sequence is endless


# Joe and Kuo's direction numbers for dimensions 2 and 3: degree, coefficients, initial numbers. Dimension 1 is van der Corput's.
_DIRECTIONS: tuple[tuple[int, int, tuple[int, ...]], ...] = ((1, 0, (1,)), (2, 1, (1, 3)))
_BITS = 30


def sobol(dimensions: int) -> Iterator[tuple[float, ...]]:
    """The points of the Sobol sequence in [0, 1)^dimensions, at most 3, by Gray code (Joe and Kuo, 2008)."""
    directions = [_van_der_corput(), *(_direction(*spec) for spec in _DIRECTIONS)][:dimensions]
    point = [0] * dimensions
    for index in itertools.count():
        yield tuple(value / (1 << _BITS) for value in point)
        lowest_zero = (~index & (index + 1)).bit_length() - 1
        # Beyond 2^30 points the sequence begins again; no sweep gets there.
        point = [value ^ steps[lowest_zero % _BITS] for value, steps in zip(point, directions, strict=True)]


def _van_der_corput() -> list[int]:
    return [1 << (_BITS - 1 - bit) for bit in range(_BITS)]


def _direction(degree: int, coefficients: int, initial: tuple[int, ...]) -> list[int]:
    steps = [number << (_BITS - 1 - bit) for bit, number in enumerate(initial)]
    for bit in range(degree, _BITS):
        value = steps[bit - degree] ^ (steps[bit - degree] >> degree)
        for inner in range(1, degree):
            if (coefficients >> (degree - 1 - inner)) & 1:
                value ^= steps[bit - inner]
        steps.append(value)
    return steps


def trials_of(sweep: SweepConfig, cells: Sequence[Cell]) -> list[Trial]:
    """Every trial of these cells: proxy by proxy, so that cheap ones come first; learning rates and seeds within."""
    return [
        Trial(proxy.name, cell, lr, seed)
        for proxy in sweep.proxies
        for cell in cells
        for lr in sweep.space.lr.grid()
        for seed in sweep.seeds
    ]


def control_trials(sweep: SweepConfig) -> list[Trial]:
    """The known-bad control on each proxy with each seed. It runs first: if it does not fail, nothing else counts."""
    control = sweep.control
    cell = Cell(control.beta2, clip_text(control.clip), control.warmup)
    lr = sweep.space.lr.centre * control.lr_factor
    return [Trial(proxy.name, cell, lr, seed, control=True) for proxy in sweep.proxies for seed in sweep.seeds]


def clip_text(clip: Clip) -> str:
    """`off`, `p90` or the shortest text of the number."""
    return clip if isinstance(clip, str) else f"{clip:g}"
