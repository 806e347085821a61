"""Twelve faults of training, each at a random place, step and strength.

Faults of the data, the model, the plan or the precision are there for replays as well. Faults of the hardware and of
a restart strike the live run once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from diagnosis_lab import GLOBAL_BATCH, POST_NORM, PRE_NORM, RANKS, Architecture, Breakage, Lab

from stormsail.platform.data.order import DataOrder
from stormsail.platform.data.tokens import Sample
from stormsail.platform.diagnosis import Cause


@dataclass(frozen=True, slots=True)
class FaultCase:
    """A fault as it will happen.

    Attributes:
        name: Of the fault.
        cause: What a diagnosis should say.
        architecture: What it happens to.
        step: When it begins.
        breakage: The fault itself.
        about: Its place and strength, for people.
    """

    name: str
    cause: Cause
    architecture: Architecture
    step: int
    breakage: Breakage
    about: str


def _bad_samples(draw: Random, at: int, samples: int, seed: int) -> set[int]:
    """Some samples of one to six batches in a row from a step on."""
    order = DataOrder(samples, seed)
    share = draw.choice((0.25, 0.5, 1.0))
    found: set[int] = set()
    for step in range(at, at + draw.randint(1, 6)):
        ids = [int(index) for index in order.sample_ids(step, GLOBAL_BATCH)]
        found |= set(draw.sample(ids, round(share * len(ids))))
    return found


def _toxic(draw: Random, at: int, samples: int, seed: int) -> tuple[Breakage, str]:
    bad = _bad_samples(draw, at, samples, seed)

    def taint(index: int, sample: Sample) -> Sample:
        if index not in bad:
            return sample
        noise = np.random.default_rng(index).integers(0, 256, len(sample[0]) + 1)
        return noise[:-1], noise[1:], sample[2]

    return Breakage(taint=taint), f"{len(bad)} samples of random tokens"


def _shuffled(draw: Random, at: int, samples: int, seed: int) -> tuple[Breakage, str]:
    bad = _bad_samples(draw, at, samples, seed)

    def taint(index: int, sample: Sample) -> Sample:
        if index not in bad:
            return sample
        return sample[0], np.random.default_rng(index).permutation(sample[1]), sample[2]

    return Breakage(taint=taint), f"{len(bad)} samples with shuffled targets"


def _repeated(draw: Random, at: int, samples: int, seed: int) -> tuple[Breakage, str]:
    bad = _bad_samples(draw, at, samples, seed)
    token = draw.randrange(256)

    def taint(index: int, sample: Sample) -> Sample:
        if index not in bad:
            return sample
        same = np.full(len(sample[0]), token, dtype=np.int64)
        return same, same, sample[2]

    return Breakage(taint=taint), f"{len(bad)} samples of nothing but token {token}"


def _fast(_draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    return Breakage(lr_scale=lambda step: 12.0 if step >= at else 1.0), "learning rate x 12"


def _forgetful(draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    count_too = draw.choice((False, True))

    def strike(lab: Lab, step: int) -> bool:
        if step != at:
            return False
        for state in lab.optimizer.state.values():
            for name, value in state.items():
                if name != "step" or count_too:
                    value.zero_()
        return True

    return Breakage(strike=strike), "restart without moments" + (" and Adam's step" if count_too else "")


def _element(draw: Random, lab: Lab) -> tuple[torch.nn.Parameter, int]:
    """A random element of a random matrix or vector, large ones being hit more often."""
    parameters = list(lab.model.parameters())
    chosen = draw.choices(parameters, [parameter.numel() for parameter in parameters])[0]
    return chosen, draw.randrange(chosen.numel())


def _weight(draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    where = draw.random()

    def strike(lab: Lab, step: int) -> bool:
        if step == at:
            parameter, index = _element(Random(where), lab)
            parameter.data.view(-1)[index] *= 2.0**14
        return False

    return Breakage(strike=strike), "one weight x 2^14"


def _flip(draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    where = draw.random()

    def strike(lab: Lab, step: int) -> bool:
        if step == at:
            parameter, index = _element(Random(where), lab)
            words = lab.optimizer.state[parameter]["exp_avg"].view(-1).view(torch.int32)
            words[index] ^= 1 << 30
        return False

    return Breakage(strike=strike), "top exponent bit of one first moment flipped"


def _nan(draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    where, rank = draw.random(), draw.randrange(RANKS)

    def spoil(lab: Lab, step: int) -> int:
        if step != at:
            return -1
        parameter, index = _element(Random(where), lab)
        assert parameter.grad is not None
        parameter.grad.view(-1)[index] = float("nan")
        return rank

    return Breakage(spoil=spoil), f"one NaN on rank {rank}"


def _exploding(draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    block, growth = draw.randrange(PRE_NORM.layers), draw.uniform(1.5, 4.0)

    def swell(step: int) -> dict[str, float]:
        return {f"blocks.{block}": min(growth ** (step - at + 1), 2.0**20)} if step >= at else {}

    return Breakage(swell=swell), f"gradient through block {block} grows x {growth:.1f} a step"


def _dead(draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    block = draw.randrange(PRE_NORM.layers)
    parts = draw.choice((("attention",), ("mlp",), ("attention", "mlp")))

    def gain(step: int) -> dict[str, float]:
        return {f"blocks.{block}.{part}": 0.0 for part in parts} if step >= at else {}

    return Breakage(gain=gain), f"{' and '.join(parts)} of block {block} give nothing"


def _no_warmup(draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    peak = POST_NORM.peak * draw.uniform(0.7, 1.4)

    def scale(step: int) -> float:
        return peak / (POST_NORM.peak * (step + 1) / POST_NORM.warmup_steps) if step >= at else 1.0

    return Breakage(lr_scale=scale), f"warm-up cut short, learning rate {peak:.3g} at once"


def _overflow(draw: Random, at: int, _samples: int, _seed: int) -> tuple[Breakage, str]:
    power = draw.randint(21, 27)
    return Breakage(fp16_scale=lambda step: 2.0**power if step >= at else 1.0), f"fp16 with a loss scale of 2^{power}"


Maker = Callable[[Random, int, int, int], tuple[Breakage, str]]
FAULTS: dict[str, tuple[Cause, Architecture, Maker]] = {
    "toxic batches": (Cause.DATA, PRE_NORM, _toxic),
    "label shuffle": (Cause.DATA, PRE_NORM, _shuffled),
    "repeated token": (Cause.DATA, PRE_NORM, _repeated),
    "LR x 12": (Cause.OSCILLATION, PRE_NORM, _fast),
    "lost optimizer state": (Cause.RESUME, PRE_NORM, _forgetful),
    "weight x 2^14": (Cause.HARDWARE, PRE_NORM, _weight),
    "bit flip in a moment": (Cause.HARDWARE, PRE_NORM, _flip),
    "NaN on one rank": (Cause.HARDWARE, PRE_NORM, _nan),
    "exploding layer": (Cause.EXPLOSION, PRE_NORM, _exploding),
    "dead layer": (Cause.ARCHITECTURE, PRE_NORM, _dead),
    "post-norm, no warm-up": (Cause.ARCHITECTURE, POST_NORM, _no_warmup),
    "overflow in fp16": (Cause.NUMERICS, PRE_NORM, _overflow),
}


def make(name: str, seed: int, samples: int, first_step: int) -> FaultCase:
    """A fault, drawn from its seed.

    Args:
        name: A key of `FAULTS`.
        seed: Of place, step and strength.
        samples: Samples of the data source.
        first_step: Step of the saved state; the fault begins 4 to 29 steps later.
    """
    cause, architecture, maker = FAULTS[name]
    draw = Random(f"{name} {seed}")
    at = first_step + draw.randint(4, 29)
    breakage, about = maker(draw, at, samples, BASE_SEED)
    return FaultCase(name, cause, architecture, at, breakage, about)


BASE_SEED = 1
"""Of weights and data order of the shared saved states."""
