"""The points of a sweep and the trials that measure them: grid or Sobol; pure.

A *cell* is what a sweep chooses between: second decay rate, clip and warm-up. It is never judged by one learning
rate: each cell is trained over the whole grid of learning rates, on each proxy, with each seed. A *trial* is one of those.
A *setting* is a cell without its beta2: what is tried on the whole core, LR x beta2.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from stormsail.tuning.settings import Clip, SpaceSection, SweepConfig


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """The rest of a cell, without the core's beta2.

    Attributes:
        clip: As in `Cell`.
        warmup: As in `Cell`.
    """

    clip: str
    warmup: float


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
    def setting(self) -> Setting:
        """The cell without its beta2."""
        return Setting(self.clip, self.warmup)

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


def all_settings(space: SpaceSection) -> list[Setting]:
    """Every pair of clip and warm-up once, in the order of the lists."""
    return [Setting(clip, warmup) for clip, warmup in itertools.product(*_axes(space))]


def sobol_settings(space: SpaceSection, count: int) -> list[Setting]:
    """`count` different settings, spread evenly by a Sobol sequence; all of them if there are fewer.

    The sequence is the unscrambled one, so that equal sweeps choose equal settings.
    """
    clips, warmups = _axes(space)
    chosen: dict[Setting, None] = {}
    for across, down in sobol(2):
        if len(chosen) >= min(count, len(clips) * len(warmups)):
            break
        chosen.setdefault(Setting(clips[int(across * len(clips))], warmups[int(down * len(warmups))]))
    return list(chosen)


def _axes(space: SpaceSection) -> tuple[list[str], list[float]]:
    """The different clips and warm-ups; `1` and `1.0` are one."""
    return list(dict.fromkeys(clip_text(clip) for clip in space.clip)), list(dict.fromkeys(space.warmup))


def core_beta2s(sweep: SweepConfig) -> list[float]:
    """The beta2s of the core: those listed, or so many over their range, even in the logarithm of the half-life.

    Each is trained over the same whole grid of learning rates, whatever the method: a curve with holes has no sensitivity.
    """
    listed = list(dict.fromkeys(sweep.space.beta2))
    if sweep.search.core == "grid":
        return listed
    low, high = (math.log(1.0 - beta2) for beta2 in (min(listed), max(listed)))
    shares = (point[0] for point in itertools.islice(sobol(1), sweep.search.betas))
    return list(dict.fromkeys(1.0 - float(f"{math.exp(low + share * (high - low)):.3g}") for share in shares))


def core_cells(sweep: SweepConfig, settings: Sequence[Setting]) -> list[Cell]:
    """The core's cells for each of these settings."""
    return [Cell(beta2, one.clip, one.warmup) for one in settings for beta2 in core_beta2s(sweep)]


# Joe and Kuo's direction numbers for dimension 2: degree, coefficients, initial numbers. Dimension 1 is van der Corput's.
_DIRECTIONS: tuple[tuple[int, int, tuple[int, ...]], ...] = ((1, 0, (1,)),)
_BITS = 30


def sobol(dimensions: int) -> Iterator[tuple[float, ...]]:
    """The points of the Sobol sequence in [0, 1)^dimensions, at most 2, by Gray code (Joe and Kuo, 2008)."""
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
